//! Long seeded runs of the scheduler, and of the whole engine on a delayed device, with faults: what may go wrong
//! does, again and again, and
//! nothing is lost. The runs are this package's tests; nothing here is linked by anything else.
//!
//! `HALYARD_SIMULATION_STEPS` and `HALYARD_SIMULATION_SEED` make them longer or repeat one; a failure prints the line
//! to repeat it.
