/* What the CUDA runtime's headers want of their compiler's; the wheel with the headers has none of these. */
#pragma once

#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __inline_hint__
#define __no_return__ __attribute__((noreturn))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __specialization_static
#define __location__(a)
#define __annotate__(a) __attribute__((a))
#define CUDARTAPI
#define CUDARTAPI_CDECL
