//! Style sheet of the pages of analyses.

/// Style sheet of pages with charts, tables and text in sections. Pages are as wide as the window, at most 1400 pixels; lines of text that
/// are longer than the page are broken.
pub const STYLE: &str = "
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 24px; color: #1f2733; background: #f6f7f9; font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid #e3e7ed; border-radius: 10px; padding: 16px 22px; margin: 20px 0; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 0 0 8px; } h3 { font-size: 15px; margin: 14px 0 4px; } p { margin: 4px 0; color: #5b6675; }
svg { max-width: 100%; height: auto; display: block; } pre { font-size: 13px; white-space: pre-wrap; margin: 0; }
table { border-collapse: collapse; font-size: 13px; overflow-wrap: normal; } th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid #e3e7ed; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid #3b6fb6; outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: \" \\2191\"; } th[aria-sort=descending] button::after { content: \" \\2193\"; }
.name { text-align: left; } .wide { overflow-x: auto; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px 0 14px; vertical-align: -1px; }
[title] { cursor: help; }
";
