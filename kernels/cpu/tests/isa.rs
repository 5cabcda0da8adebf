//! Choosing kernels by instruction set.
#![allow(missing_docs)]

use halyard_kernels_cpu::{Isa, Kernels};

#[test]
fn the_best_set_is_available_and_is_what_best_gives() {
    assert!(Isa::best().is_available());
    assert_eq!(Kernels::best().isa(), Isa::best());
}

#[test]
fn every_available_set_has_kernels_of_its_own_and_no_other_has_any() {
    for isa in Isa::ALL {
        let kernels = Kernels::for_isa(isa);
        assert_eq!(kernels.is_some(), isa.is_available(), "{isa}");
        if let Some(kernels) = kernels {
            assert_eq!(kernels.isa(), isa);
        }
    }
    assert!(Kernels::for_isa(Isa::Portable).is_some());
}

#[test]
fn a_cpu_with_bf16_but_no_vnni_has_no_set() {
    assert!(
        Kernels::for_isa(Isa::Avx512 {
            vnni: false,
            bf16: true
        })
        .is_none()
    );
}
