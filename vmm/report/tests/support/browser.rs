//! Opens pages in a browser, without a network, with scripts that check them.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// How a page is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub width: u32,
    pub dark: bool,
}

impl View {
    pub const USUAL: View = View {
        width: 1300,
        dark: false,
    };
    /// The widths of a phone, a usual window and a large screen, and a dark page.
    pub const ALL: [View; 4] = [
        View {
            width: 390,
            ..View::USUAL
        },
        View::USUAL,
        View {
            width: 2560,
            ..View::USUAL
        },
        View {
            dark: true,
            ..View::USUAL
        },
    ];

    fn args(self, height: u64) -> Vec<String> {
        // Chromium's numbers of the colour schemes that users prefer: 0 is dark, 1 is light.
        let scheme = if self.dark { 0 } else { 1 };
        vec![
            format!("--window-size={},{height}", self.width),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ]
    }
}

/// Runs the browser on a file, without a network. Returns the browser's standard output.
fn browser(file: &Path, args: &[String]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--hide-scrollbars", "--virtual-time-budget=3000"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--no-first-run"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(args)
        .arg(format!("file://{}", file.display()))
        .env("HOME", profile.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Adds checking scripts to a page before the page's closing tag `end`, opens the page in the browser, and returns the scripts' outcome.
pub fn examine(content: &str, end: &str, name: &str, view: View, scripts: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let script = scripts.join("\n");
    // The browser parses an HTML page as HTML, where the marks of the CDATA section are comments of the script.
    let script = format!("<script>//<![CDATA[\n{script}\n//]]></script>");
    let (before, after) = content.rsplit_once(end).unwrap();
    // Errors of the page's own scripts count from the first script on.
    let watch = "<script>window.errors = []; window.addEventListener(\"error\", (event) => window.errors.push(event.message)); window.addEventListener(\"unhandledrejection\", (event) => window.errors.push(String(event.reason))); console.error = (...all) => window.errors.push(all.join(\" \"));</script>";
    let before = match before.split_once("</head>") {
        Some((head, rest)) => format!("{head}{watch}</head>{rest}"),
        None => before.to_owned(),
    };
    let file = folder.path().join(name);
    fs::write(&file, format!("{before}{script}{end}{after}")).unwrap();
    let mut args = view.args(1000);
    args.push("--dump-dom".into());
    let dom = browser(&file, &args);
    let (_, outcome) = dom
        .split_once("id=\"outcome\"")
        .expect("the script has run");
    let (_, outcome) = outcome.split_once('>').unwrap();
    let (outcome, _) = outcome.split_once("</pre>").unwrap();
    let outcome = outcome
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&outcome).unwrap()
}

/// Writes a screenshot to `target/tmp`, for people to look at.
pub fn screenshot(content: &str, name: &str, view: View, height: u64) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(name);
    fs::write(&file, content).unwrap();
    let image = file.with_extension("png");
    let _ = fs::remove_file(&image);
    let mut args = view.args(height.min(12_000));
    args.push(format!("--screenshot={}", image.display()));
    browser(&file, &args);
    // An image of one colour would be far smaller.
    assert!(fs::metadata(&image).unwrap().len() > 20_000);
}

/// Checks that the scripts found no problem.
pub fn check(outcome: &Value) {
    let problems = outcome["problems"].as_array().unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
}
