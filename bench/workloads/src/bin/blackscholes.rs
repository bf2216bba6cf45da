//! Prices N European options by Black-Scholes, in the two compared layouts: one array of structs,
//! or one array per field as in PARSEC's program.

use clap::{Parser, ValueEnum};
use fieldstone_workloads::{
    Error,
    blackscholes::{Arrays, Contract, contracts, price, verify},
    fill::{fill, fill_from},
    phase::timed,
    verdict::conclude,
};
use std::{hint::black_box, process::ExitCode};

/// Price options.
#[derive(Parser)]
#[command(name = "blackscholes", version)]
struct Arguments {
    /// Number of options, rounded up to an even number.
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Number of times that all options are priced.
    #[arg(default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Layout of the options in memory.
    #[arg(long, value_enum, default_value_t = DataLayout::Arrays)]
    layout: DataLayout,
}

#[derive(Clone, Copy, ValueEnum)]
enum DataLayout {
    /// One array per field.
    Arrays,
    /// One array of structs.
    Structs,
}

/// Prices all options `passes` times, from either layout.
fn price_all(arguments: &Arguments, n: usize) -> Result<Vec<f32>, Error> {
    let mut prices = fill(n, |_| 0.0_f32)?;
    match arguments.layout {
        DataLayout::Structs => {
            let options = timed("init", || fill_from(n, contracts(n)))?;
            timed("kernel", || {
                for _ in 0..arguments.passes {
                    black_box(&mut prices).iter_mut().zip(&options).for_each(|(p, option)| *p = price(*option));
                }
            });
        }
        DataLayout::Arrays => {
            let options = timed("init", || {
                let floats = |of: fn(Contract) -> f32| fill_from(n, contracts(n).map(of));
                Arrays::try_new(floats, |of| fill_from(n, contracts(n).map(of)))
            })?;
            timed("kernel", || {
                for _ in 0..arguments.passes {
                    black_box(&mut prices).iter_mut().enumerate().for_each(|(i, p)| *p = price(options.get(i)));
                }
            });
        }
    }
    Ok(prices)
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let n = (arguments.n as usize).next_multiple_of(2);
    let prices = price_all(arguments, n)?;
    timed("verify", || verify(&prices))
}

fn main() -> ExitCode {
    conclude("blackscholes", run(&Arguments::parse()))
}
