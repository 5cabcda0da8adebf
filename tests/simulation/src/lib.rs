//! Long seeded runs of the scheduler, and of the whole engine on a delayed device, with many faults of every kind:
//! nothing may be lost. The runs are this package's tests; nothing here is linked by anything else.
//!
//! `HALYARD_SIMULATION_STEPS` and `HALYARD_SIMULATION_SEED` make them longer or repeat one; a failure prints the line
//! to repeat it.
