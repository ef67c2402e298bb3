// The fault by which IREE 3.13.0 fails at a call of BlackJAX's NUTS on x86-64 Linux: "ref is null; while invoking native function
// hal.buffer.subspan". Two loops, one in the other, and before and behind the inner one a choice between two arrays, as NUTS chooses the end of a trajectory that
// it extends. The answer for ones is 289 289. Without either barrier, the value that `%p` adds up, or with conditions that compare the counters instead of
// carrying a boolean, IREE gives it.
//
//   iree-compile --iree-input-type=auto --iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu=host
//       --iree-input-demote-f64-to-f32=false --iree-opt-const-eval=false iree-nuts.mlir -o nuts.vmfb
//   iree-run-module --device=local-sync --module=nuts.vmfb --function=main --input=2xf64=1
module @nuts {
  func.func public @main(%x: tensor<2xf64>) -> tensor<2xf64> {
    %true = stablehlo.constant dense<true> : tensor<i1>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %c3 = stablehlo.constant dense<3> : tensor<i32>
    %outer:5 = stablehlo.while(%goes_on = %true, %n = %c0, %left = %x, %right = %x, %p = %x) : tensor<i1>, tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>
    cond {
      stablehlo.return %goes_on : tensor<i1>
    } do {
      %end = "stablehlo.case"(%n) ({
        stablehlo.return %left : tensor<2xf64>
      }, {
        stablehlo.return %right : tensor<2xf64>
      }) : (tensor<i32>) -> tensor<2xf64>
      %inner:4 = stablehlo.while(%goes_on_inside = %true, %m = %c0, %a = %end, %b = %end) : tensor<i1>, tensor<i32>, tensor<2xf64>, tensor<2xf64>
      cond {
        stablehlo.return %goes_on_inside : tensor<i1>
      } do {
        %b_next = stablehlo.add %b, %b : tensor<2xf64>
        %barrier:2 = stablehlo.optimization_barrier %a, %b_next : tensor<2xf64>, tensor<2xf64>
        %a_next = stablehlo.add %barrier#1, %barrier#1 : tensor<2xf64>
        %m_next = stablehlo.add %m, %c1 : tensor<i32>
        %is_less = stablehlo.compare LT, %m_next, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %both = stablehlo.and %goes_on_inside, %is_less : tensor<i1>
        stablehlo.return %both, %m_next, %a_next, %b_next : tensor<i1>, tensor<i32>, tensor<2xf64>, tensor<2xf64>
      }
      %barrier:2 = stablehlo.optimization_barrier %left, %right : tensor<2xf64>, tensor<2xf64>
      %ends:2 = "stablehlo.case"(%n) ({
        stablehlo.return %inner#2, %barrier#1 : tensor<2xf64>, tensor<2xf64>
      }, {
        stablehlo.return %barrier#0, %inner#2 : tensor<2xf64>, tensor<2xf64>
      }) : (tensor<i32>) -> (tensor<2xf64>, tensor<2xf64>)
      %p_next = stablehlo.add %p, %inner#2 : tensor<2xf64>
      %n_next = stablehlo.add %n, %c1 : tensor<i32>
      %is_less = stablehlo.compare LT, %n_next, %c3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %both = stablehlo.and %goes_on, %is_less : tensor<i1>
      stablehlo.return %both, %n_next, %ends#0, %ends#1, %p_next : tensor<i1>, tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>
    }
    return %outer#4 : tensor<2xf64>
  }
}
