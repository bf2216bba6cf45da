//! malloc beside it all, and another thread that looks at everything.

use crate::world::{Verdict, World};

/// A few random uses of malloc's family.
pub(crate) fn heap(world: &mut World) -> Verdict {
    for _ in 0..4 {
        world.heap.step(&mut world.random).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Starts a thread (a fresh stack, an arena of its own) that checks this thread's memory and allocates.
pub(crate) fn thread(world: &mut World) -> Verdict {
    let seed = world.random.draw();
    let world = &*world;
    let look = move || {
        let mut random = fieldstone_workloads::random::SplitMix64::new(seed);
        let mut blocks = fieldstone_workloads::blocks::Blocks::new(4 << 20);
        for _ in 0..50 {
            blocks.step(&mut random).map_err(|error| error.to_string())?;
        }
        world.check_all()
    };
    std::thread::scope(|scope| scope.spawn(look).join()).unwrap_or_else(|_| Err("the thread panicked".into()))
}
