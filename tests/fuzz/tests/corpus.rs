//! Replays the inputs in `corpus/TARGET/`, which once made a reader panic, overflow a sum, hang, or take memory without bound.

use std::path::Path;

use nodescope_fuzz::targets;

#[test]
fn inputs_that_once_failed_are_refused_or_read() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut replayed = 0;
    for folder in std::fs::read_dir(&corpus).expect("the corpus") {
        let folder = folder.expect("a folder").path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let target = targets::named(&name);
        let target = target.unwrap_or_else(|| panic!("{name} is no target"));
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .expect("a folder of inputs")
            .map(|file| file.expect("an input").path())
            .collect();
        files.sort();
        for file in files {
            eprintln!("{}", file.display());
            target.check(&std::fs::read(&file).expect("an input"));
            replayed += 1;
        }
    }
    assert!(replayed > 0, "the corpus is empty");
}
