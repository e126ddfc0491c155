//! What a study file may say, and what is said about one that is wrong.

use std::path::Path;

use nodescope_study::Study;

const SMALL: &str = r#"
[cluster]
nodes = 2

[node]
cores = 2

[job]
command = "hpcc"

[[window]]
name = "hpl"
measure = "50 M instructions"
"#;

#[test]
fn a_small_study_is_enough() {
    let study = Study::parse(Path::new("small.toml"), SMALL).unwrap();
    assert_eq!(study.name, "small");
    assert_eq!((study.nodes, study.topology.vcpus()), (2, 2));
    assert_eq!((study.job.ranks, study.job.slots), (4, 2));
    assert_eq!(study.cluster_memory().to_string(), "1 GiB");
    assert_eq!(study.results, Path::new("results/small"));
    assert_eq!(study.windows[0].models.caches, Some(study.caches.clone()));
    assert_eq!(study.windows[0].models.memory, Some(study.memory.clone()));
    assert_eq!(study.place("job.command").unwrap().line, 9);
}
