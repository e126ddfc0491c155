//! The HTML page is well-formed, loads nothing, and shows every phase.

mod support;

use nodescope_phases::{Request, analyse};

#[test]
fn the_page_is_xml_with_a_portrait_for_each_phase_that_communicates() {
    let analysis = analyse(&support::torus().messages(), &Request::default()).unwrap();
    let page = analysis.html().unwrap();
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let texts: Vec<&str> = (document.descendants())
        .filter(|node| node.tag_name().name() == "text")
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for title in [
        "phase 0, class 0",
        "phase 2, class 2",
        "phase 4, class 3",
        "phase 6, class 4",
    ] {
        assert_eq!(
            texts.iter().filter(|text| **text == title).count(),
            1,
            "{title}"
        );
    }
    assert!(!texts.contains(&"phase 1, class 1"));
    let rows = document
        .descendants()
        .filter(|node| node.tag_name().name() == "tr")
        .count();
    assert_eq!(rows, 9);
    assert!(!page.contains("href=") && !page.contains("src="));
}

#[test]
fn a_silent_program_has_a_page() {
    let mut trace = support::Trace::new(1);
    trace.end(support::SECOND);
    let analysis = analyse(&trace.messages(), &Request::default()).unwrap();
    assert!(analysis.html().unwrap().contains("one silent phase"));
}
