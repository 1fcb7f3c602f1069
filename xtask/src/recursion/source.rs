//! What the source declares: types with their fields, traits and their implementors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use names::idents;
use syn::{Attribute, Fields, Item, Type};

/// Names of types, or their keys.
pub type Types = BTreeSet<String>;

#[derive(Default)]
pub struct Source {
    /// By type: its fields' types by name.
    pub fields: BTreeMap<String, BTreeMap<String, Type>>,
    /// Types and traits by their bare names.
    declared: BTreeMap<String, Vec<Place>>,
    /// Types by the traits that they implement.
    pub implementors: BTreeMap<String, Types>,
    implemented: Vec<(Place, Place)>,
    aliases: BTreeMap<String, (Place, Type)>,
}

/// Where a name stands. As a key it is `crate::file::Name`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub krate: String,
    pub file: String,
    pub name: String,
}

impl Place {
    fn new(krate: &str, file: &str, name: &str) -> Place {
        Place { krate: krate.to_owned(), file: file.to_owned(), name: name.to_owned() }
    }

    pub fn key(&self) -> String {
        format!("{}::{}::{}", self.krate, self.file, self.name)
    }
}

/// Whether the item is for tests alone.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.path().get_ident().map(ToString::to_string).unwrap_or_default();
        let syn::Meta::List(list) = &attribute.meta else { return text == "test" };
        let inside = list.tokens.to_string();
        text == "cfg" && (inside.starts_with("test") || inside.starts_with("all (test"))
    })
}

impl Source {
    /// What a bare name stands for in a file: what that declares; else the crate; else all others.
    /// A name without an owner stays.
    pub fn keys(&self, krate: &str, file: &str, names: &Types) -> Types {
        let mut keys = Types::new();
        for name in names {
            if let Some((at, ty)) = self.aliases.get(name) {
                keys.extend(self.keys(
                    &at.krate,
                    &at.file,
                    &idents(ty).into_iter().filter(|n| n != name).collect(),
                ));
                continue;
            }
            let all = self.declared.get(name).map_or(&[][..], Vec::as_slice);
            let of = |wanted: &dyn Fn(&Place) -> bool| -> Types {
                all.iter().filter(|at| wanted(at)).map(Place::key).collect()
            };
            let found = [
                of(&|at| at.krate == krate && at.file == file),
                of(&|at| at.krate == krate),
                of(&|_| true),
            ];
            match found.into_iter().find(|found| !found.is_empty()) {
                Some(found) => keys.extend(found),
                None => _ = keys.insert(name.clone()),
            }
        }
        keys
    }

    /// After all files: the implementors of each trait, by key.
    pub fn finish(&mut self) {
        for (ty, of) in &self.implemented {
            let types = self.keys(&ty.krate, &ty.file, &[ty.name.clone()].into());
            for of in self.keys(&of.krate, &of.file, &[of.name.clone()].into()) {
                self.implementors.entry(of).or_default().extend(types.iter().cloned());
            }
        }
    }

    fn declare(&mut self, krate: &str, file: &str, name: &str) {
        let place = Place::new(krate, file, name);
        let all = self.declared.entry(name.to_owned()).or_default();
        if !all.contains(&place) {
            all.push(place);
        }
    }

    pub fn add(&mut self, krate: &str, file: &Path, tree: syn::File) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = || {
            file.parent()
                .and_then(Path::file_name)
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let file = if name == "mod" { folder() } else { name };
        self.items(krate, &file, tree.items);
    }

    fn items(&mut self, krate: &str, file: &str, items: Vec<Item>) {
        for item in items {
            self.item(krate, file, item);
        }
    }

    fn item(&mut self, krate: &str, file: &str, item: Item) {
        match item {
            Item::Mod(m) if !is_test(&m.attrs) => {
                if let Some((_, items)) = m.content {
                    self.items(krate, &m.ident.to_string(), items);
                }
            }
            Item::Struct(s) => {
                self.fields_of(krate, file, &s.ident.to_string(), [&s.fields].into_iter())
            }
            Item::Enum(e) => self.fields_of(
                krate,
                file,
                &e.ident.to_string(),
                e.variants.iter().map(|v| &v.fields),
            ),
            Item::Type(t) => {
                let (name, ty) = (t.ident.to_string(), *t.ty);
                self.aliases.insert(name.clone(), (Place::new(krate, file, &name), ty));
            }
            Item::Impl(i) if !is_test(&i.attrs) => {
                let Some(of) = own_name(&i.self_ty) else { return };
                let of_trait = i.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
                if let Some(name) = of_trait.map(|segment| segment.ident.to_string()) {
                    self.implemented
                        .push((Place::new(krate, file, &of), Place::new(krate, file, &name)));
                }
            }
            Item::Trait(t) => self.declare(krate, file, &t.ident.to_string()),
            _ => (),
        }
    }

    fn fields_of<'a>(
        &mut self,
        krate: &str,
        file: &str,
        name: &str,
        all: impl Iterator<Item = &'a Fields>,
    ) {
        self.declare(krate, file, name);
        let of = self.fields.entry(Place::new(krate, file, name).key()).or_default();
        for (nth, fields) in all.enumerate() {
            for (at, field) in fields.iter().enumerate() {
                let named = field.ident.as_ref().map(ToString::to_string);
                let mut key = named.unwrap_or_else(|| at.to_string());
                if of.contains_key(&key) {
                    key = format!("{nth} {key}");
                }
                of.insert(key, field.ty.clone());
            }
        }
    }
}

/// The name of a type that an `impl` is for.
fn own_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => own_name(&reference.elem),
        Type::TraitObject(_) => idents(ty).into_iter().next(),
        _ => None,
    }
}

/// Names in types.
mod names {
    use super::Types;
    use syn::visit::{self, Visit};

    #[derive(Default)]
    struct Names(Types);

    impl<'ast> Visit<'ast> for Names {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            self.0.insert(segment.ident.to_string());
            visit::visit_path_segment(self, segment);
        }
    }

    /// All names that a type mentions.
    pub(super) fn idents(ty: &syn::Type) -> Types {
        let mut names = Names::default();
        names.visit_type(ty);
        names.0
    }
}
