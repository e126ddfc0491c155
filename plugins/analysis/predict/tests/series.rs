//! Sweeps: the predictions of a series equal those of single runs, and the written files are well formed.

use std::path::Path;

use nodescope_config::document::Setting;
use nodescope_loop_tree::{CollectiveKind, PeerRef, Program, ProgramBuilder};
use nodescope_predict::series::in_parallel;
use nodescope_predict::{
    Cluster, ClusterFile, Grid, Point, Prediction, Request, Scale, Series, Sweep, predict,
};

const FILE: &str = "[network]\nlatency = \"1 us\"\nbandwidth = \"1 GB/s\"\n";

fn program() -> Program {
    let mut builder = ProgramBuilder::new();
    for rank in 0..4u64 {
        builder
            .begin()
            .compute(1_000_000 * (1 + rank))
            .send(PeerRef::Relative(1), 0, 1000)
            .receive(PeerRef::Relative(3), 0, 1000)
            .collective(CollectiveKind::Allreduce, 0, 8)
            .end(10)
            .ranks(1);
    }
    builder.finish()
}

fn one(cluster: &Cluster) -> Result<Prediction, String> {
    predict(&program(), cluster, &Request::default()).map_err(|error| error.to_string())
}

fn series(text: &str) -> Series {
    let sweep: Sweep = text.parse().unwrap();
    let file = ClusterFile::new(Path::new("c.toml"), FILE);
    let points = in_parallel(sweep.values.len(), |index| {
        let value = sweep.values[index].clone();
        let cluster = file.with(&[sweep.setting(&value)]).unwrap();
        Point::new(value, &one(&cluster))
    });
    Series {
        format: 1,
        cluster: "c".into(),
        parameter: sweep.field.clone(),
        unit: sweep.unit,
        scale: sweep.scale,
        points,
        notes: Vec::new(),
    }
}

#[test]
fn each_point_is_the_prediction_of_a_file_that_says_so() {
    let series = series("network.latency=1us:100us:log3");
    assert_eq!(series.scale, Scale::Logarithmic);
    for (point, latency) in series.points.iter().zip(["1 us", "10 us", "100 us"]) {
        let written = FILE.replace("1 us", latency);
        let alone = one(&Cluster::parse(Path::new("c.toml"), &written).unwrap()).unwrap();
        let result = point.result.unwrap();
        assert_eq!(result.time, alone.outcome.time, "{latency}");
        let parts: u64 = result.split.parts().iter().map(|(_, part)| part).sum();
        assert_eq!(parts, result.time);
    }
    let times: Vec<u64> = series.times().map(|(_, result)| result.time).collect();
    assert!(times.is_sorted() && times[0] < times[2], "{times:?}");
}

#[test]
fn what_is_written_is_well_formed() {
    // With one rank a node, the second placement is refused: it puts all ranks on one node of one core.
    for text in [
        "nodes.placement=block,[0, 0, 0, 0],cyclic",
        "network.bandwidth=1GB/s:2GB/s:5",
        "network.latency=1us:100us:log20",
        "network.latency=1us",
    ] {
        let series = series(text);
        let svg = series.svg().unwrap();
        let image = roxmltree::Document::parse(&svg).unwrap();
        assert_eq!(image.root_element().tag_name().name(), "svg");
        for part in ["computation", "wait"] {
            assert!(svg.contains(part), "{text}: no {part} in the image");
        }
        let csv = series.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + series.points.len());
        let columns = lines[0].split(',').count();
        for (line, point) in lines[1..].iter().zip(&series.points) {
            let quotes = line.matches('"').count();
            assert_eq!(quotes % 2, 0, "{line}");
            if quotes == 0 {
                assert_eq!(line.split(',').count(), columns, "{line}");
            }
            assert!(line.contains(&point.value.text), "{line}");
        }
        let json: serde_json::Value = serde_json::from_str(&series.json()).unwrap();
        assert_eq!(
            json["points"].as_array().unwrap().len(),
            series.points.len()
        );
        assert!(series.text().contains(&series.parameter));
    }
}

#[test]
fn a_value_with_which_the_program_cannot_run_says_why() {
    let series = series("nodes.placement=block,[0, 0, 0, 0],[0, 1]");
    let errors: Vec<_> = series
        .points
        .iter()
        .map(|point| point.error.clone())
        .collect();
    assert_eq!(errors[0], None);
    assert!(errors[1].as_ref().unwrap().contains("which has 1 cores"));
    assert!(errors[2].as_ref().unwrap().contains("the nodes of 2 ranks"));
    assert!(series.text().contains("which has 1 cores"));
    assert_eq!(series.times().count(), 1);
}

#[test]
fn settings_are_checked_as_the_file_is() {
    let file = ClusterFile::new(Path::new("c.toml"), FILE);
    let error = |field: &str, value: &str| {
        let settings = [Setting::new(field, value)];
        file.with(&settings).unwrap_err().to_string()
    };
    assert!(error("network.latncy", "1 us").contains("did you mean \"latency\"?"));
    assert!(error("network.latency", "1").contains("1 has no unit"));
    assert!(error("network.latency", "1 GB").contains("not a time"));
    assert!(error("topology.kind", "ring").contains("is not a topology"));
}

fn grid(first: &str, second: &str) -> Grid {
    let sweeps: [Sweep; 2] = [first, second].map(|text| text.parse().unwrap());
    let file = ClusterFile::new(Path::new("c.toml"), FILE);
    let mut points = Vec::new();
    for one in &sweeps[0].values {
        for other in &sweeps[1].values {
            let settings = [sweeps[0].setting(one), sweeps[1].setting(other)];
            let cluster = file.with(&settings).unwrap();
            points.push(Point::new(other.clone(), &self::one(&cluster)));
        }
    }
    Grid::new("c", [&sweeps[0], &sweeps[1]], points, Vec::new())
}

#[test]
fn a_grid_has_the_predictions_of_all_pairs() {
    let grid = grid(
        "network.latency=1us:100us:log3",
        "network.bandwidth=1MB/s,1GB/s",
    );
    assert_eq!(grid.points.len(), 6);
    for point in &grid.points {
        let [latency, bandwidth] = &point.values;
        let written = FILE.replace("1 us", &latency.text);
        let written = written.replace("1 GB/s", &bandwidth.text);
        let alone = one(&Cluster::parse(Path::new("c.toml"), &written).unwrap()).unwrap();
        assert_eq!(point.result.unwrap().time, alone.outcome.time, "{written}");
    }
    let text = grid.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("network.latency (lines) and network.bandwidth (columns)"));
    assert!(lines[5].trim_start().starts_with("1MB/s"), "{text}");
    assert_eq!(
        lines[6].split_whitespace().collect::<Vec<_>>()[..2],
        ["1", "us"]
    );
    assert!(text.contains("at 1 us, 1GB/s, longest"), "{text}");
    let csv = grid.csv();
    let lines: Vec<&str> = csv.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), 7);
    assert!(lines[0].starts_with(
        "network.latency,network.latency [s],network.bandwidth,network.bandwidth [B/s],time_s,"
    ));
    assert!(
        lines[2].starts_with("1 us,0.000001,1GB/s,1000000000,0."),
        "{}",
        lines[2]
    );
    let json: serde_json::Value = serde_json::from_str(&grid.json()).unwrap();
    assert_eq!(json["points"][3]["values"][0]["text"], "10 us");
    assert_eq!(json["parameters"][1]["parameter"], "network.bandwidth");
}

#[test]
fn a_grid_is_drawn_with_a_field_for_each_pair() {
    // The second placement has no room for the ranks: its fields are empty.
    for (first, second, filled) in [
        (
            "network.latency=1us:100us:log3",
            "network.bandwidth=1MB/s,1GB/s",
            6,
        ),
        (
            "network.latency=1us,2us",
            "nodes.placement=block,[0, 0, 0, 0]",
            2,
        ),
        (
            "network.latency=1us:100us:60",
            "network.bandwidth=1MB/s:1GB/s:log2",
            120,
        ),
    ] {
        let grid = grid(first, second);
        let svg = grid.svg().unwrap();
        let image = roxmltree::Document::parse(&svg).unwrap();
        let fields = image.descendants().filter(|node| {
            node.has_tag_name("rect") && node.attribute("fill").is_some_and(|fill| fill != "none")
        });
        // The background is a rectangle, too.
        assert_eq!(fields.count(), filled + 1);
    }
}
