//! The reference clusters of guest-images/jobs/scaling, for predictions.

use std::path::Path;

use nodescope_predict::ClusterFile;

#[test]
fn reference_clusters_have_the_published_number_of_ranks() {
    for (name, nodes, ranks) in [("gen1", 16, 384), ("gen2", 112, 3584)] {
        let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../guest-images/jobs/scaling");
        let file = ClusterFile::load(&jobs.join(format!("{name}-predict.toml")));
        let cluster = file
            .unwrap()
            .with(&[])
            .unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!((cluster.name.as_str(), cluster.nodes), (name, Some(nodes)));
        assert_eq!(cluster.ranks_per_node, Some(cluster.cores));
        assert_eq!(nodes * cluster.cores, ranks);
    }
}
