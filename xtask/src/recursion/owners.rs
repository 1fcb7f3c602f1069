//! Which types own which: what a drop of the one drops of the other.

use std::collections::BTreeSet;

use syn::{GenericArgument, PathArguments, Type};

use super::cycles::Edges;
use super::source::Source;

/// Types that refer to what they name without owning it.
const BORROW: [&str; 8] =
    ["Weak", "PhantomData", "NonNull", "AtomicPtr", "ManuallyDrop", "Sender", "fn", "MaybeUninit"];

/// An edge from each type to what its fields own; a `dyn` owns what all its implementors do.
pub fn edges(all: &Source) -> Edges {
    let mut edges = Edges::new();
    for (name, fields) in &all.fields {
        let mut parts = name.split("::");
        let (krate, file) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let owned = edges.entry(name.clone()).or_default();
        for ty in fields.values() {
            collect(all, (krate, file), ty, owned);
        }
    }
    edges
}

/// The types of the source that a field's type owns.
fn collect(all: &Source, at: (&str, &str), ty: &Type, owned: &mut BTreeSet<String>) {
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return };
            let name = last.ident.to_string();
            if BORROW.contains(&name.as_str()) {
                return;
            }
            // `machine::Line` is another crate's, whatever this one has of that name.
            let qualifier = path.path.segments.first().map(|segment| segment.ident.to_string());
            let qualifier = qualifier.filter(|first| {
                ["machine", "page", "uvm", "zram", "mbuf", "sf_buf", "volume"]
                    .contains(&first.as_str())
            });
            let at_home = qualifier.as_deref().map_or(at, |other| (other, ""));
            for key in all.keys(at_home.0, at_home.1, &[name].into()) {
                // An alias may stand for a `dyn`.
                owned.extend(all.implementors.get(&key).into_iter().flatten().cloned());
                owned.extend(all.fields.contains_key(&key).then_some(key));
            }
            if let PathArguments::AngleBracketed(arguments) = &last.arguments {
                for argument in &arguments.args {
                    if let GenericArgument::Type(ty) = argument {
                        collect(all, at, ty, owned);
                    }
                }
            }
        }
        Type::TraitObject(object) => {
            for bound in &object.bounds {
                if let syn::TypeParamBound::Trait(bound) = bound {
                    let name = bound.path.segments.last().map(|segment| segment.ident.to_string());
                    let keys = all.keys(at.0, at.1, &name.into_iter().collect());
                    let who = keys.iter().filter_map(|key| all.implementors.get(key));
                    owned.extend(who.flatten().cloned());
                }
            }
        }
        Type::Array(array) => collect(all, at, &array.elem, owned),
        Type::Slice(slice) => collect(all, at, &slice.elem, owned),
        Type::Paren(inner) => collect(all, at, &inner.elem, owned),
        Type::Tuple(tuple) => tuple.elems.iter().for_each(|ty| collect(all, at, ty, owned)),
        _ => (),
    }
}
