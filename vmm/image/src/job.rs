//! The job disk: the per-run raw disk that carries the job and the user's files into the guest.

use crate::{ImageError, cpio};

/// File for the guest's `/job` folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    /// Path of the file relative to `/job`, for example `run` or `input/case.dat`.
    pub path: String,
    /// Permission bits of the file, for example `0o755`.
    pub mode: u32,
    /// Contents of the file.
    pub data: Vec<u8>,
}

/// Returns the bytes of a job disk with `files`: a newc cpio archive padded to whole sectors of 512 bytes. The guest reads the archive
/// directly from the second virtio-blk device. Node 0 runs the file named `run`. Folders are created as needed.
///
/// # Errors
///
/// [`ImageError::JobFile`] for a path that is empty, absolute, has an empty, `.` or `..` component, occurs twice, is also a folder, or
/// can't be in an archive; or for a file of 4 GiB or more.
pub fn job_disk(files: &[JobFile]) -> Result<Vec<u8>, ImageError> {
    let mut writer = cpio::Writer::new();
    let mut seen: Vec<&str> = Vec::new();
    let mut folders: Vec<&str> = Vec::new();
    for file in files {
        let fail = |problem| {
            Err(ImageError::JobFile {
                path: file.path.clone(),
                problem,
            })
        };
        if file.path.starts_with('/') {
            return fail("is absolute; give a path relative to the guest's /job folder");
        }
        if file
            .path
            .split('/')
            .any(|part| matches!(part, "" | "." | ".."))
        {
            return fail(
                "has an empty, `.` or `..` component; give a plain path below the guest's /job folder",
            );
        }
        if file.path.contains('\0') || file.path == "TRAILER!!!" {
            return fail("is a name that a cpio archive cannot hold; rename it");
        }
        if seen.contains(&file.path.as_str()) {
            return fail("is given twice; leave one out");
        }
        if folders.contains(&file.path.as_str()) {
            return fail("is a file and a folder of another file; rename one");
        }
        if u32::try_from(file.data.len()).is_err() {
            return fail("has 4 GiB or more, which a cpio archive cannot hold; split it");
        }
        for (slash, _) in file.path.match_indices('/') {
            let folder = &file.path[..slash];
            if seen.contains(&folder) {
                return fail("lies in a folder that is also given as a file; rename one");
            }
            if !folders.contains(&folder) {
                folders.push(folder);
                writer.directory(folder, 0o755);
            }
        }
        seen.push(&file.path);
        writer.file(&file.path, file.mode, &file.data);
    }
    Ok(writer.finish(512))
}

/// Returns the regular files of a job disk.
///
/// # Errors
///
/// [`ImageError::Archive`] if the disk is damaged.
pub fn job_files(disk: &[u8]) -> Result<Vec<JobFile>, ImageError> {
    let files = cpio::read(disk)?.into_iter().filter(cpio::Entry::is_file);
    Ok(files
        .map(|file| JobFile {
            path: file.name.to_owned(),
            mode: file.mode & 0o7777,
            data: file.data.to_vec(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(path: &str) -> JobFile {
        JobFile {
            path: path.into(),
            mode: 0o644,
            data: b"x".to_vec(),
        }
    }

    #[test]
    fn folders_come_before_their_files_and_once() {
        let disk = job_disk(&[file("a/b/one"), file("a/b/two"), file("run")]).unwrap();
        let names: Vec<_> = cpio::read(&disk)
            .unwrap()
            .iter()
            .map(|entry| entry.name.to_owned())
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/two", "run"]);
        assert_eq!(disk.len() % 512, 0);
    }

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        let message = |files: &[JobFile]| job_disk(files).unwrap_err().to_string();
        assert_eq!(
            message(&[file("/etc/passwd")]),
            "job file `/etc/passwd`: is absolute; give a path relative to the guest's /job folder"
        );
        for path in ["", "../x", "a/../b", "a//b", "./a", "a/"] {
            assert!(
                message(&[file(path)]).contains("has an empty, `.` or `..` component"),
                "{path}"
            );
        }
        assert_eq!(
            message(&[file("a"), file("a")]),
            "job file `a`: is given twice; leave one out"
        );
        assert!(
            message(&[file("a"), file("a/b")])
                .contains("lies in a folder that is also given as a file")
        );
        assert!(
            message(&[file("a/b"), file("a")]).contains("is a file and a folder of another file")
        );
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(files in proptest::collection::btree_map("[a-z]{1,9}/[a-z.]{0,5}x", (0u32..0o1000, any::<Vec<u8>>()), 0..8)) {
            let files: Vec<_> = files.into_iter().map(|(path, (mode, data))| JobFile { path, mode, data }).collect();
            prop_assert_eq!(job_files(&job_disk(&files).unwrap()).unwrap(), files);
        }
    }
}
