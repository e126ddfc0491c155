//! Properties of phases of any messages.

mod support;

use nodescope_phases::haar::{CELLS, SIDE, transform_matrix};
use nodescope_phases::placement::{crossing, improve, sockets};
use nodescope_phases::step::{Matrix, Steps};
use nodescope_phases::{Message, Messages, Request, analyse};
use proptest::prelude::*;
use support::message;

const RANKS: u32 = 12;

fn messages(most: usize) -> impl Strategy<Value = Vec<Message>> {
    let one = (0u64..10_000, 0..RANKS, 0..RANKS, 0u64..1 << 40);
    let one = one.prop_map(|(time, from, to, bytes)| message(time, from, to, bytes));
    proptest::collection::vec(one, 0..most).prop_map(|mut list| {
        list.sort_unstable();
        list
    })
}

fn counts(groups: &[u32]) -> Vec<usize> {
    (0..RANKS)
        .map(|group| groups.iter().filter(|&&of| of == group).count())
        .collect()
}

proptest! {
    // Clustering without optimisation is slow.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn placements_keep_the_sizes_of_nodes_and_never_cost_more(
        list in messages(60),
        given in proptest::collection::vec(0..5u32, RANKS as usize),
    ) {
        let matrix = Matrix::new(&list);
        let placed = improve(&matrix, &given).unwrap();
        prop_assert_eq!(counts(&placed), counts(&given));
        prop_assert!(crossing(&matrix, &placed) <= crossing(&matrix, &given));
        let [in_order, by_bytes] = sockets(&matrix, &given, 2).unwrap();
        prop_assert!(crossing(&matrix, &by_bytes) <= crossing(&matrix, &in_order));
        for (socket, node) in by_bytes.iter().zip(&given) {
            prop_assert_eq!(socket / 2, *node);
        }
    }

    #[test]
    fn phases_cover_the_run_and_hold_every_message(
        list in messages(80),
        step in prop_oneof![1 => Just(None), 5 => (200u64..20_000).prop_map(Some)],
        classes in prop_oneof![Just(None), (1usize..9).prop_map(Some)],
    ) {
        let messages = Messages { ranks: RANKS, from: 0, to: 10_000, list, ..Messages::default() };
        let request = Request { step, classes, seed: 7 };
        let analysis = analyse(&messages, &request).unwrap();
        prop_assert_eq!(analysis.whole.total, messages.total());
        let sent: u64 = analysis.phases.iter().map(|phase| phase.figures.total.messages).sum();
        prop_assert_eq!(sent, messages.list.len() as u64);
        prop_assert_eq!(analysis.phases[0].from, 0);
        prop_assert_eq!(analysis.phases.last().unwrap().to, 10_000);
        for pair in analysis.phases.windows(2) {
            prop_assert_eq!(pair[0].to, pair[1].from);
            prop_assert_ne!(pair[0].class, pair[1].class);
        }
        prop_assert_eq!(analysis.clone().json(), analyse(&messages, &request).unwrap().json());
    }

    #[test]
    fn the_first_coefficient_is_the_mean(values in proptest::collection::vec(0.0..1e6f64, CELLS)) {
        let mut matrix = [0.0; CELLS];
        matrix.copy_from_slice(&values);
        transform_matrix(&mut matrix);
        let mean = values.iter().sum::<f64>() / (SIDE * SIDE) as f64;
        prop_assert!((matrix[0] - mean).abs() <= 1e-9 * mean.max(1.0));
    }

    #[test]
    fn steps_lose_no_message(list in messages(50), length in 1u64..20_000) {
        let messages = Messages { ranks: RANKS, from: 0, to: 10_000, list, ..Messages::default() };
        let steps = Steps::of_length(&messages, length);
        let split = steps.split(&messages.list);
        prop_assert_eq!(split.concat(), messages.list.clone());
        for (number, step) in split.iter().enumerate() {
            for message in *step {
                prop_assert_eq!(steps.of(message.time), number);
            }
        }
    }
}
