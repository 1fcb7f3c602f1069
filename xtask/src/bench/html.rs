//! Pieces of the report's page: bars, tables, figures, folded parts.

use std::fmt::Write;

/// One bar of a picture.
pub struct Bar {
    pub name: String,
    /// Its colour: a class of `report.css`.
    pub class: &'static str,
    /// What it shows; the picture's scale says how long that is.
    pub value: f64,
    /// Where it should end.
    pub aim: Option<f64>,
    /// What stands beside it.
    pub number: String,
}

/// Bars on one scale, which ends at the longest or at `most`; a thin line stands at `mark`.
pub fn bars(bars: &[Bar], most: Option<f64>, mark: Option<f64>) -> String {
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let end = most.unwrap_or(longest).max(f64::MIN_POSITIVE);
    // A bar past the end is cut; its number still tells.
    let percent = |value: f64| (value / end * 100.0).clamp(0.0, 100.0);
    let mut rows = String::new();
    for Bar { name, class, value, aim, number } in bars {
        let mark =
            mark.map_or(String::new(), |at| format!("<u style=\"left:{:.1}%\"></u>", percent(at)));
        let aim =
            aim.map_or(String::new(), |at| format!("<b style=\"left:{:.1}%\"></b>", percent(at)));
        let _ = writeln!(
            rows,
            "<div class=\"row\"><span class=\"name\">{}</span><span class=\"track {class}\"><i style=\"width:{:.1}%\"></i>\
             {mark}{aim}</span><span class=\"number\">{}</span></div>",
            escape(name),
            percent(*value),
            escape(number)
        );
    }
    format!("<div class=\"bars\">\n{rows}</div>\n")
}

/// A table that scrolls by itself where the page is narrow. Cells are HTML.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells
            .map(|cell| {
                let class = if cell.starts_with("<span") { " class=\"text\"" } else { "" };
                format!("<{tag}{class}>{cell}</{tag}>")
            })
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line("th", &mut head.iter().copied());
    let rows: String =
        rows.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect();
    format!("<div class=\"wide\"><table>\n{head}{rows}</table></div>\n")
}

/// A picture with its title and what is to be known about it, which may have links and the like.
pub fn figure(title: &str, picture: &str, caption: &str) -> String {
    format!("<figure><h3>{title}</h3>\n{picture}<figcaption>{caption}</figcaption></figure>\n")
}

/// What is shown on demand.
pub fn folded(title: &str, inside: &str) -> String {
    format!("<details><summary>{title}</summary>\n{inside}</details>\n")
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_end_where_the_scale_does() {
        let bar = |value| Bar {
            name: "a <b>".to_owned(),
            class: "met",
            value,
            aim: Some(1.0),
            number: "n".to_owned(),
        };
        let picture = bars(&[bar(1.0), bar(9.0)], Some(2.0), None);
        for part in ["a &lt;b&gt;", "width:50.0%", "width:100.0%", "left:50.0%"] {
            assert!(picture.contains(part), "no {part} in {picture}");
        }
    }
}
