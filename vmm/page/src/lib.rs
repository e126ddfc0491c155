//! HTML pages that are well-formed XML, too: of reports and of predictions.
//!
//! Names from users and guests go in by [`Page::element`] and [`Page::text`], which escape them. [`Page::raw`] takes markup.

/// A page being written.
#[derive(Clone, Debug, Default)]
pub struct Page(String);

impl Page {
    /// A page of this title, with this style sheet, open in its body.
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

    /// Returns what was added to a page that was not begun: the markup of a part of another page.
    pub fn markup(self) -> String {
        self.0
    }

    /// Adds markup.
    pub fn raw(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// Adds text.
    pub fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                // Characters that XML allows (XML 1.0, section 2.2); a carriage return would be read as a line feed.
                '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => {
                    self.0.push(character);
                }
                _ => self.0.push('\u{fffd}'),
            }
        }
    }

    /// Adds an element that holds text; without a class if that is empty.
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

    /// Adds names and the colours that stand for them in a chart.
    pub fn legend<'a>(&mut self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        self.raw("<div class=\"legend\">");
        for (name, colour) in entries {
            self.raw(&format!("<span><i style=\"background: {colour}\"></i>"));
            self.text(name);
            self.raw("</span>");
        }
        self.raw("</div>");
    }

    /// The page, with its body closed.
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
        let hostile = "</title>&\"\u{0}\u{1b}[31m\r\u{fffe}'<script>";
        let mut page = Page::begin(hostile, "p { margin: 0; }");
        page.element("p", "name", hostile);
        page.legend([(hostile, "#123456")]);
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
            .map(|node| {
                node.descendants()
                    .filter_map(|node| node.text())
                    .collect::<String>()
            })
            .collect();
        assert_eq!(texts.len(), 3);
        assert!(
            texts
                .iter()
                .all(|text| text.contains("</title>&\"\u{fffd}")),
            "{texts:?}"
        );
        assert!(!page.contains("<script>"));
    }
}
