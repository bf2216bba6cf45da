//! Breadth-first search over a Kronecker graph, after Graph500: few hubs, many leaves, neighbours
//! spread over all memory.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `graph` | the Kronecker graph |
//! | `search` | the search, and the rules that check its result |
//!
//! The graph has Graph500's parameters and is stored as compressed sparse rows. A search from each
//! of eight roots (64 in Graph500: `--roots 64`) makes a tree of parents. Graph500's rules check
//! each tree before the next search. The rate is Graph500's too: the edges of the component divided
//! by the search time, as harmonic mean over all searches. The graph contains no loops, and none
//! are counted.

mod graph;
mod search;

use clap::Parser;
use fieldstone_workloads::{
    Error,
    phase::timed,
    random::{SplitMix64, mix},
    verdict::conclude,
};
use graph::CsrGraph;
use std::{process::ExitCode, time::Instant};

/// Search a random graph breadth first.
#[derive(Parser)]
#[command(name = "bfs", version)]
struct Arguments {
    /// Logarithm of the number of vertices; 20 means a million vertices and a peak of 400 MB.
    #[arg(value_parser = clap::value_parser!(u32).range(1..=28))]
    scale: u32,
    /// Edges per vertex, each in both directions.
    #[arg(default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    edge_factor: u16,
    /// Number of searches, each from another root.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    roots: u32,
}

const SEED: u64 = 0x0062_6673;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let mut random = SplitMix64::new(SEED);
    let graph = timed("init", || CsrGraph::kronecker(arguments.scale, arguments.edge_factor, &mut random))?;
    let (mut kernel, mut verify) = (0.0, 0.0);
    let mut seconds_per_edge = 0.0;
    let mut checksum = 0;
    for _ in 0..arguments.roots {
        let root = connected_vertex(&graph, &mut random)?;
        let start = Instant::now();
        let parents = search::breadth_first(&graph, root)?;
        let took = start.elapsed().as_secs_f64();
        kernel += took;
        let start = Instant::now();
        let tree = search::validate(&graph, root, &parents)?;
        checksum = mix(checksum ^ tree.level_sum);
        seconds_per_edge += took / tree.edges as f64;
        verify += start.elapsed().as_secs_f64();
    }
    eprintln!("kernel: {kernel:.6}\nverify: {verify:.6}");
    // This line is a rate, not a phase.
    eprintln!("{:.4e} traversed edges per second (harmonic mean)", f64::from(arguments.roots) / seconds_per_edge);
    Ok(checksum)
}

/// Returns a random vertex with at least one neighbour.
fn connected_vertex(graph: &CsrGraph, random: &mut SplitMix64) -> Result<u32, Error> {
    if graph.has_no_edge() {
        return Err(Error::Argument { what: "all edges of this small graph are loops: use a larger SCALE".into() });
    }
    loop {
        let vertex = graph.vertex(random.below(graph.vertices()));
        if !graph.neighbours(vertex).is_empty() {
            return Ok(vertex);
        }
    }
}

fn main() -> ExitCode {
    conclude("bfs", run(&Arguments::parse()))
}
