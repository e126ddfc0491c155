//! Tests of the files that a new run replaces and keeps, and of runs that are refused.

use std::os::unix::fs::symlink;

use super::*;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&name| name.into()).collect()
}

/// Returns a folder in which a run has written two files, one of them in subfolders that the run created.
fn results() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let folder = ResultsFolder::take(&path, "run.json", false).unwrap();
    folder.write("run.json", b"{}").unwrap();
    let (_, mut file) = folder.create_file("files/out/x.txt").unwrap();
    file.write_all(b"x").unwrap();
    (dir, path)
}

#[test]
fn a_replaced_run_takes_its_own_files_along_and_leaves_the_users() {
    let (_dir, path) = results();
    fs::write(path.join("thesis.tex"), "mine").unwrap();
    fs::write(path.join("files/notes.txt"), "mine").unwrap();
    fs::create_dir(path.join("figures")).unwrap();
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    folder.clear(&names(&["run.json", "files/x.txt"])).unwrap();
    assert!(!path.join("run.json").exists());
    assert!(!path.join("files/out").exists());
    for kept in ["thesis.tex", "files/notes.txt"] {
        assert_eq!(fs::read_to_string(path.join(kept)).unwrap(), "mine");
    }
    assert!(path.join("figures").is_dir());
    folder.write("run.json", b"new").unwrap();
    assert_eq!(fs::read(path.join("run.json")).unwrap(), b"new");
}

#[test]
fn a_run_that_was_killed_has_listed_what_it_made() {
    let (_dir, path) = results();
    let list = fs::read_to_string(path.join(LIST)).unwrap();
    assert_eq!(
        list,
        "run.json\nrun.json.partial\nfiles/\nfiles/out/\nfiles/out/x.txt\n"
    );
    // A file is listed before it is created: reserving a name lists it.
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    folder.clear(&[]).unwrap();
    folder.reserve("trace.nst").unwrap();
    assert_eq!(fs::read_to_string(path.join(LIST)).unwrap(), "trace.nst\n");
}

#[test]
fn nothing_is_removed_before_it_is_known_that_nothing_is_in_the_way() {
    let (_dir, path) = results();
    fs::write(path.join("fabric.pcap"), "mine").unwrap();
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    let error = folder.clear(&names(&["run.json", "fabric.pcap"]));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("r/fabric.pcap is in the way"), "{message}");
    assert!(path.join("run.json").exists() && path.join("files/out/x.txt").exists());
    drop(folder);
    assert!(
        fs::read_to_string(path.join(LIST))
            .unwrap()
            .contains("run.json")
    );
}

#[test]
fn a_users_file_is_never_overwritten() {
    let (_dir, path) = results();
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    folder.clear(&[]).unwrap();
    fs::create_dir(path.join("files")).unwrap();
    fs::write(path.join("files/a"), "mine").unwrap();
    for name in ["files/a", "files/a/b"] {
        let error = folder.create_file(name).unwrap_err();
        assert!(matches!(error, FolderError::InTheWay(_)), "{error}");
    }
    assert_eq!(fs::read_to_string(path.join("files/a")).unwrap(), "mine");
    folder.create_file("files/b").unwrap();
}

#[test]
fn links_are_not_followed_out_of_the_folder() {
    let (dir, path) = results();
    let outside = dir.path().join("outside");
    fs::create_dir_all(outside.join("out")).unwrap();
    fs::write(outside.join("out/x.txt"), "mine").unwrap();
    fs::write(outside.join("run.json"), "mine").unwrap();
    // The user has moved results elsewhere and left links.
    fs::remove_dir_all(path.join("files")).unwrap();
    fs::remove_file(path.join("run.json")).unwrap();
    symlink(&outside, path.join("files")).unwrap();
    symlink(outside.join("run.json"), path.join("run.json")).unwrap();
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    for name in ["run.json", "files/new"] {
        let error = folder.clear(&names(&[name])).unwrap_err();
        assert!(matches!(error, FolderError::InTheWay(_)), "{error}");
    }
    folder.clear(&[]).unwrap();
    for name in ["run.json", "files/new"] {
        let error = folder.create_file(name).unwrap_err();
        assert!(matches!(error, FolderError::InTheWay(_)), "{error}");
    }
    for kept in ["out/x.txt", "run.json"] {
        assert_eq!(fs::read_to_string(outside.join(kept)).unwrap(), "mine");
    }
    assert!(!outside.join("new").exists());
}

#[test]
fn a_list_that_leads_elsewhere_removes_nothing_there() {
    let (dir, path) = results();
    let outside = dir.path().join("outside.txt");
    fs::write(&outside, "mine").unwrap();
    let list = format!(
        "../outside.txt\n{}\n./run.json\nfiles/../../outside.txt\n/\n\n{LIST}\nfiles/out/x.t",
        outside.display()
    );
    fs::write(path.join(LIST), list).unwrap();
    let folder = ResultsFolder::take(&path, "run.json", true).unwrap();
    folder.clear(&[]).unwrap();
    assert_eq!(fs::read_to_string(outside).unwrap(), "mine");
    assert!(path.join("run.json").exists() && path.join("files/out/x.txt").exists());
    assert!(matches!(
        folder.reserve("../outside.txt"),
        Err(FolderError::Outside(_))
    ));
}

#[test]
fn results_and_other_files_are_not_replaced_unasked() {
    let (dir, path) = results();
    let take = |path: &Path, replace| ResultsFolder::take(path, "run.json", replace).unwrap_err();
    assert!(matches!(take(&path, false), FolderError::Occupied(_)));
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.tex"), "mine").unwrap();
    assert!(matches!(take(&other, true), FolderError::Foreign(_)));
    fs::write(other.join("run.json"), "{}").unwrap();
    assert!(matches!(take(&other, false), FolderError::Occupied(_)));
    assert!(matches!(take(&other, true), FolderError::Unlisted(_)));
    assert_eq!(fs::read_dir(&other).unwrap().count(), 2);
}

#[test]
fn one_run_at_a_time() {
    let (_dir, path) = results();
    let first = ResultsFolder::take(&path, "run.json", true).unwrap();
    for replace in [true, false] {
        let second = ResultsFolder::take(&path, "run.json", replace);
        assert!(matches!(second, Err(FolderError::Locked(_))));
    }
    drop(first);
    assert!(ResultsFolder::take(&path, "run.json", true).is_ok());
}

#[test]
fn a_run_that_makes_nothing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    drop(ResultsFolder::take(&path, "run.json", false).unwrap());
    assert!(!path.exists());
    let (_dir, path) = results();
    drop(ResultsFolder::take(&path, "run.json", true).unwrap());
    assert!(path.join("run.json").exists());
}
