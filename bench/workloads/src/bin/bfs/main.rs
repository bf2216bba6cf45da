//! Breadth-first search over a Kronecker graph, as Graph500 has it: few hubs, many leaves, neighbours all over memory.
//!
//! The graph is made with Graph500's parameters and kept as compressed sparse rows. From each of eight roots (Graph500 has 64:
//! `--roots 64`) a search makes a tree of parents, and the tree is checked by Graph500's rules before the next search. The rate is
//! Graph500's too: edges of the tree's component over the time of its search, and of all searches the harmonic mean. Loops are
//! not in the graph and not counted.

mod graph;
mod search;

use clap::Parser;
use fieldstone_workloads::{
    Error,
    phase::timed,
    random::{SplitMix64, mix},
    verdict::conclude,
};
use graph::Graph;
use std::{process::ExitCode, time::Instant};

/// Searches a random graph breadth first.
#[derive(Parser)]
#[command(name = "bfs", version)]
struct Arguments {
    /// Logarithm of the number of vertices: 20 is a million, 400 MB at the peak.
    #[arg(value_parser = clap::value_parser!(u32).range(1..=28))]
    scale: u32,
    /// Edges a vertex, each in both directions.
    #[arg(default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    edge_factor: u16,
    /// Searches, each from another root.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    roots: u32,
}

const SEED: u64 = 0x0062_6673;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let mut random = SplitMix64::new(SEED);
    let graph = timed("init", || Graph::kronecker(arguments.scale, arguments.edge_factor, &mut random))?;
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
    // Not a phase, and not to be taken for one.
    eprintln!("{:.4e} traversed edges a second (harmonic mean)", f64::from(arguments.roots) / seconds_per_edge);
    Ok(checksum)
}

/// A random vertex that has a neighbour.
fn connected_vertex(graph: &Graph, random: &mut SplitMix64) -> Result<u32, Error> {
    if graph.has_no_edge() {
        return Err(Error::Argument { what: "all edges of so small a graph are loops: give a larger SCALE".into() });
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
