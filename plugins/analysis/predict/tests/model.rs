//! Models of runs of several problem sizes and numbers of ranks.

use nodescope_loop_tree::{CollectiveKind, PeerRef, ProgramBuilder, Sequences};
use nodescope_predict::model::measure::{Measured, Metric, Region};
use nodescope_predict::model::{ModelError, Models, Run, extra_p, models};
use serde_json::Value;

const US: u64 = 1_000_000;

/// A run in which each of p ranks computes n^2 / p us, sends n bytes to the next rank, and meets the others, ten times.
fn run(ranks: u32, size: u64) -> Run {
    let mut builder = ProgramBuilder::new();
    builder.begin().compute(size * size * US / u64::from(ranks));
    builder.ireceive(PeerRef::Relative(ranks - 1), 0, size, 0);
    builder.send(PeerRef::Relative(1), 0, size).wait(&[0]);
    builder
        .collective(CollectiveKind::Barrier, 0, 0)
        .end(10)
        .ranks(ranks);
    let program = builder.finish();
    let whole = 10 * (size * size / u64::from(ranks) + 20) * US;
    let sequences = Sequences {
        ranks: (0..ranks).map(|rank| program.unfold(rank)).collect(),
        spans: vec![whole; ranks as usize],
        ..Sequences::default()
    };
    Run {
        ranks: ranks.into(),
        size: size as f64,
        measured: Measured::new(&sequences, None),
    }
}

fn grid() -> Vec<Run> {
    let sizes = [64, 128, 256];
    let ranks = [2, 4, 8];
    ranks
        .into_iter()
        .flat_map(|p| sizes.map(|n| run(p, n)))
        .collect()
}

fn function(models: &Models, metric: Metric, region: &str) -> String {
    let named = |model: &&nodescope_predict::model::Model| {
        model.metric == metric && model.region.to_string().contains(region)
    };
    let found = models.models.iter().find(named);
    found
        .unwrap_or_else(|| panic!("no {region}"))
        .function
        .clone()
}

#[test]
fn functions_of_ranks_and_size_are_found() {
    let found = models(&grid(), "n", &[(64.0, 1024.0)]).unwrap();
    assert_eq!(function(&found, Metric::Bytes, "MPI_Send"), "10.00 n");
    assert_eq!(function(&found, Metric::Calls, "MPI_Barrier"), "10.00");
    let program = &found.models[0];
    assert_eq!(
        (&program.region, program.metric),
        (&Region::Program, Metric::Time)
    );
    assert_eq!(program.function, "2.000e-4 + 1.000e-5 n^2 p^-1");
    let expected = 2e-4 + 1e-5 * 1024.0 * 1024.0 / 64.0;
    assert!((program.at[0] - expected).abs() < 1e-6 * expected);
    assert_eq!(program.share, Some(1.0));
    // The computation before the first call is another one than that after the barriers.
    let after = &found.models[1];
    assert!(
        after
            .region
            .to_string()
            .starts_with("computation from MPI_Barrier at")
    );
    assert_eq!(after.function, "9.000e-6 n^2 p^-1");
    assert!((after.share.unwrap() - 0.9).abs() < 0.01);
    let text = found.text();
    assert!(text.contains("at p=64 n=1024: 164.040 ms"), "{text}");
    let json: Value = serde_json::from_str(&found.json()).unwrap();
    assert_eq!(
        json["models"][0]["fit"]["terms"][1][1]["ranks"]["sixths"],
        -6
    );
}

#[test]
fn data_for_extra_p_have_a_line_for_each_value() {
    let runs = grid();
    let lines = extra_p(&runs, "n");
    let values: usize = runs.iter().map(|run| run.measured.values.len()).sum();
    assert_eq!(lines.lines().count(), values);
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first["params"], serde_json::json!({ "p": 2.0, "n": 64.0 }));
    assert_eq!(
        (&first["callpath"], &first["metric"]),
        (&"program".into(), &"time".into())
    );
    assert!((first["value"].as_f64().unwrap() - 0.02068).abs() < 1e-9);
}

#[test]
fn runs_that_determine_no_function_are_refused() {
    let of = |runs: &[(u32, u64)]| {
        let runs: Vec<Run> = runs.iter().map(|&(p, n)| run(p, n)).collect();
        models(&runs, "n", &[]).map(|_| ())
    };
    assert!(of(&[(2, 64), (4, 64), (8, 64)]).is_ok());
    assert!(of(&[(2, 64), (4, 64), (8, 64), (2, 128), (2, 256)]).is_ok());
    let few = of(&[(2, 64), (4, 64)]).unwrap_err();
    assert!(
        matches!(
            few,
            ModelError::Few {
                ranks: 2,
                sizes: 1,
                ..
            }
        ),
        "{few}"
    );
    let two = of(&[(2, 64), (4, 64), (8, 64), (2, 128)]).unwrap_err();
    assert!(matches!(two, ModelError::Few { sizes: 2, .. }), "{two}");
    let diagonal = of(&[(2, 64), (4, 128), (8, 256)]).unwrap_err();
    assert!(matches!(diagonal, ModelError::NoLine { .. }), "{diagonal}");
}

#[test]
fn regions_of_some_runs_only_have_no_model() {
    let mut runs = grid();
    let region = Region::Call("MPI_Test".to_owned());
    runs[0]
        .measured
        .values
        .insert((Metric::Calls, region.clone()), 3.0);
    let found = models(&runs, "n", &[]).unwrap();
    assert_eq!(found.left_out, [region]);
}
