//! HTML pages that are also well-formed XML, for reports and predictions.
//!
//! Names from users and guests are added by [`Page::element`] and [`Page::text`], which escape them. [`Page::raw`] adds markup. No character
//! of a page is invisible or reverses the direction of writing: such characters appear as on a terminal (`nodescope_hypercall::printable`).

pub mod chart;
mod style;

use nodescope_hypercall::printable;
pub use style::STYLE;

/// The script that [`Page::sort_script`] adds.
const SORT: &str = include_str!("sort.js");

/// Entry of a chart's legend: a name, its colour in the chart, and its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name, as the chart shows it.
    pub name: &'a str,
    /// Colour, in the notation of style sheets.
    pub colour: &'a str,
    /// Explanation that appears under the mouse pointer; empty for none.
    pub meaning: &'a str,
}

/// A page under construction, or a part of a page.
#[derive(Clone, Debug, Default)]
pub struct Page(String);

impl Page {
    /// Returns a page with this title and style sheet, whose body is still open.
    pub fn begin(title: &str, style: &str) -> Page {
        let mut page = Page(String::from(
            "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n",
        ));
        page.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n");
        page.element("title", "", title);
        page.raw("\n<style>");
        page.raw(style);
        page.raw("</style>\n</head>\n<body>\n");
        page
    }

    /// Returns the markup that was added to a `Page::default()`, as a part of another page.
    pub fn markup(self) -> String {
        self.0
    }

    /// Adds markup, in which characters of the markup keep their meaning.
    pub fn raw(&mut self, markup: &str) {
        if markup.is_ascii() && !markup.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return self.0.push_str(markup);
        }
        markup.chars().for_each(|character| self.shown(character));
    }

    /// Adds text, in which characters of the markup are escaped.
    pub fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                _ => self.shown(character),
            }
        }
    }

    /// Adds a character, or its escape if the character is not printable. XML allows all printable characters (XML 1.0, section 2.2).
    fn shown(&mut self, character: char) {
        match character {
            '\t' | '\n' | ' '..='~' => self.0.push(character),
            _ => {
                let mut bytes = [0; 4];
                self.0
                    .push_str(&printable(character.encode_utf8(&mut bytes)));
            }
        }
    }

    /// Adds an element that contains text. An empty `class` gives no class attribute.
    pub fn element(&mut self, tag: &str, class: &str, text: &str) {
        self.0.push('<');
        self.0.push_str(tag);
        if !class.is_empty() {
            self.0.push_str(&format!(" class=\"{class}\""));
        }
        self.0.push('>');
        self.text(text);
        self.0.push_str(&format!("</{tag}>"));
    }

    /// Adds an element that contains text, with the explanation `meaning` under the mouse pointer. An empty `meaning` or `class` is left
    /// out.
    pub fn explained(&mut self, tag: &str, class: &str, text: &str, meaning: &str) {
        if meaning.is_empty() {
            return self.element(tag, class, text);
        }
        self.raw(&format!("<{tag}"));
        if !class.is_empty() {
            self.raw(&format!(" class=\"{class}\""));
        }
        self.raw(" title=\"");
        self.text(meaning);
        self.raw("\">");
        self.text(text);
        self.raw(&format!("</{tag}>"));
    }

    /// Adds a script, which may contain any character. Every parser of the page reads the script alike: in XML, the script is in a CDATA
    /// section, and in HTML, the section's marks are comments. The script must not contain `</script` or `]]>`.
    pub fn script(&mut self, script: &str) {
        self.raw("<script>//<![CDATA[\n");
        self.raw(script);
        self.raw("//]]></script>\n");
    }

    /// Adds the script that sorts tables of the class `sortable` when their head is clicked. The tables must precede the script. Rows are
    /// sorted within their `tbody`; rows of a `tfoot` are not moved.
    pub fn sort_script(&mut self) {
        self.script(SORT);
    }

    /// Adds a legend: names with their colours in a chart, without explanations.
    pub fn legend<'a>(&mut self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let meaning = "";
        self.explained_legend(entries.into_iter().map(|(name, colour)| Entry {
            name,
            colour,
            meaning,
        }));
    }

    /// Adds a legend: names with their colours in a chart, and explanations. Adds nothing without entries.
    pub fn explained_legend<'a>(&mut self, entries: impl IntoIterator<Item = Entry<'a>>) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        self.raw("<div class=\"legend\">");
        for entry in entries {
            self.raw("<span");
            if !entry.meaning.is_empty() {
                self.raw(" title=\"");
                self.text(entry.meaning);
                self.raw("\"");
            }
            let colour = entry.colour;
            self.raw(&format!("><i style=\"background: {colour}\"></i>"));
            self.text(entry.name);
            self.raw("</span>");
        }
        self.raw("</div>");
    }

    /// Closes the body and returns the page.
    pub fn finish(mut self) -> String {
        self.raw("</body>\n</html>\n");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_xml_whatever_its_texts_are() {
        let hostile = "</title>&\"\u{0}\u{1b}[31m\r\u{fffe}'<script>\u{202e}\u{2066}\u{200b}é";
        let mut page = Page::begin(hostile, "p { margin: 0; }");
        page.element("p", "name", hostile);
        page.legend([(hostile, "#123456")]);
        page.explained("p", "name", "text", hostile);
        page.explained_legend([Entry {
            name: "name",
            colour: "#123456",
            meaning: hostile,
        }]);
        page.legend([]);
        let page = page.finish();
        let document = roxmltree::Document::parse_with_options(
            &page,
            roxmltree::ParsingOptions {
                allow_dtd: true,
                ..roxmltree::ParsingOptions::default()
            },
        );
        let document = document.unwrap();
        let texts: Vec<_> = document
            .descendants()
            .filter(|node| matches!(node.tag_name().name(), "title" | "p" | "span"))
            .map(|node| match node.attribute("title") {
                Some(meaning) => meaning.to_owned(),
                None => node
                    .descendants()
                    .filter_map(|node| node.text())
                    .collect::<String>(),
            })
            .collect();
        assert_eq!(texts.len(), 5);
        assert!(
            texts.iter().all(|text| text.contains(
                "</title>&\"\\0\\u{1b}[31m\\r\\u{fffe}'<script>\\u{202e}\\u{2066}\\u{200b}é"
            )),
            "{texts:?}"
        );
        // Charts come as markup, with names in it.
        let mut chart = Page::default();
        chart.raw("<text>a\u{202e}\u{1b}b ü</text>\n");
        assert_eq!(chart.markup(), "<text>a\\u{202e}\\u{1b}b ü</text>\n");
        assert!(!page.contains("<script>"));
    }

    #[test]
    fn the_script_needs_no_escapes() {
        let mut page = Page::begin("sorted", STYLE);
        page.sort_script();
        let page = page.finish();
        let options = roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        };
        let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
        let mut nodes = document.descendants();
        let script = nodes.find(|node| node.tag_name().name() == "script");
        assert_eq!(
            script.unwrap().text(),
            Some(format!("//\n{SORT}//").as_str())
        );
    }
}
