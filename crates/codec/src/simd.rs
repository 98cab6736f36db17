//! Compiling one safe loop for several instruction sets and choosing at run time.
//!
//! Invariant: a function compiled for an instruction set runs only after the processor was asked
//! whether it has that set.

/// Defines `fn $name` that runs the `#[inline(always)]` functions `$wide` compiled for AVX2 where
/// the processor has it, and `$narrow` compiled for the baseline elsewhere.
macro_rules! dispatch_avx2 {
    ($(#[$attribute:meta])* $vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? {
        avx2: $wide:path, baseline: $narrow:path
    }) => {
        $(#[$attribute])*
        $vis fn $name($($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) $(-> $result)? {
                    $wide($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has just been found to have AVX2, the only
                    // requirement of this otherwise safe function.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            $narrow($($argument),*)
        }
    };
}
pub(crate) use dispatch_avx2;
