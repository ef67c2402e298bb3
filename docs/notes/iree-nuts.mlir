// A part of one step of BlackJAX's NUTS, for which IREE 3.13.0 fails at the call on x86-64 Linux: "ref is null; while invoking native function
// hal.buffer.subspan". Of the step's 331 operations of JAX 152 are left; most others were replaced by zeros.
//
//   iree-compile --iree-input-type=auto --iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu=host
//       --iree-input-demote-f64-to-f32=false --iree-opt-const-eval=false iree-nuts.mlir -o nuts.vmfb
//   iree-run-module --device=local-sync --module=nuts.vmfb --function=main --input=2xi32=1 --input=2xf64=1
module @main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xui32>, %arg1: tensor<2xf64>) -> tensor<2xf64> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f64>) -> tensor<2xf64>
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %2 = stablehlo.multiply %cst_0, %cst_1 : tensor<f64>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %3 = stablehlo.add %cst_2, %2 : tensor<f64>
    %4:4 = stablehlo.optimization_barrier %1, %0, %3, %arg1 : tensor<2xui32>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
    %c_3 = stablehlo.constant dense<0> : tensor<i64>
    %c_4 = stablehlo.constant dense<3> : tensor<i64>
    %5 = stablehlo.compare LT, %c_3, %c_4, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %c_5 = stablehlo.constant dense<false> : tensor<i1>
    %6 = stablehlo.not %c_5 : tensor<i1>
    %7 = stablehlo.and %5, %6 : tensor<i1>
    %8 = stablehlo.and %7, %6 : tensor<i1>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %c_7 = stablehlo.constant dense<0> : tensor<i64>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
    %c_11 = stablehlo.constant dense<false> : tensor<i1>
    %c_12 = stablehlo.constant dense<false> : tensor<i1>
    %9:18 = stablehlo.while(%iterArg = %4#0, %iterArg_13 = %4#1, %iterArg_14 = %4#2, %iterArg_15 = %8, %iterArg_16 = %c_6, %iterArg_17 = %c_7, %iterArg_18 = %4#3, %iterArg_19 = %cst_8, %iterArg_20 = %4#3, %iterArg_21 = %4#1, %iterArg_22 = %cst_9, %iterArg_23 = %4#1, %iterArg_24 = %4#3, %iterArg_25 = %4#1, %iterArg_26 = %cst_10, %iterArg_27 = %4#1, %iterArg_28 = %c_11, %iterArg_29 = %c_12) : tensor<2xui32>, tensor<2xf64>, tensor<f64>, tensor<i1>, tensor<i32>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<i1>, tensor<i1>
    cond {
      stablehlo.return %iterArg_15 : tensor<i1>
    } do {
      %10 = stablehlo.convert %iterArg_17 : (tensor<i64>) -> tensor<ui32>
      %11 = func.call @_threefry_fold_in(%iterArg, %10) : (tensor<2xui32>, tensor<ui32>) -> tensor<2xui32>
      %12 = func.call @_threefry_split(%11) : (tensor<2xui32>) -> tensor<3x2xui32>
      %13 = stablehlo.slice %12 [0:1, 0:2] : (tensor<3x2xui32>) -> tensor<1x2xui32>
      %14 = stablehlo.reshape %13 : (tensor<1x2xui32>) -> tensor<2xui32>
      %15 = stablehlo.slice %12 [1:2, 0:2] : (tensor<3x2xui32>) -> tensor<1x2xui32>
      %16 = stablehlo.reshape %15 : (tensor<1x2xui32>) -> tensor<2xui32>
      %17 = stablehlo.slice %12 [2:3, 0:2] : (tensor<3x2xui32>) -> tensor<1x2xui32>
      %18 = stablehlo.reshape %17 : (tensor<1x2xui32>) -> tensor<2xui32>
      %19 = stablehlo.slice %14 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
      %20 = stablehlo.reshape %19 : (tensor<1xui32>) -> tensor<ui32>
      %21 = stablehlo.slice %14 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
      %22 = stablehlo.reshape %21 : (tensor<1xui32>) -> tensor<ui32>
      %c_30 = stablehlo.constant dense<0> : tensor<ui32>
      %c_31 = stablehlo.constant dense<0> : tensor<ui32>
      %23:2 = func.call @threefry2x32_1(%20, %22, %c_30, %c_31) : (tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> (tensor<ui32>, tensor<ui32>)
      %24 = stablehlo.convert %23#0 : (tensor<ui32>) -> tensor<ui64>
      %25 = stablehlo.convert %23#1 : (tensor<ui32>) -> tensor<ui64>
      %c_32 = stablehlo.constant dense<32> : tensor<ui64>
      %26 = stablehlo.shift_left %24, %c_32 : tensor<ui64>
      %27 = stablehlo.or %26, %25 : tensor<ui64>
      %c_33 = stablehlo.constant dense<12> : tensor<ui64>
      %28 = stablehlo.shift_right_logical %27, %c_33 : tensor<ui64>
      %c_34 = stablehlo.constant dense<4607182418800017408> : tensor<ui64>
      %29 = stablehlo.or %28, %c_34 : tensor<ui64>
      %30 = stablehlo.bitcast_convert %29 : (tensor<ui64>) -> tensor<f64>
      %cst_35 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
      %31 = stablehlo.subtract %30, %cst_35 : tensor<f64>
      %cst_36 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
      %cst_37 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
      %32 = stablehlo.subtract %cst_36, %cst_37 : tensor<f64>
      %33 = stablehlo.multiply %31, %32 : tensor<f64>
      %cst_38 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
      %34 = stablehlo.add %33, %cst_38 : tensor<f64>
      %35 = stablehlo.reshape %34 : (tensor<f64>) -> tensor<f64>
      %cst_39 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
      %36 = stablehlo.maximum %cst_39, %35 : tensor<f64>
      %cst_40 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
      %37 = stablehlo.compare LT, %36, %cst_40, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
      %c_41 = stablehlo.constant dense<-1> : tensor<i64>
      %c_42 = stablehlo.constant dense<1> : tensor<i64>
      %38 = stablehlo.select %37, %c_42, %c_41 : tensor<i1>, tensor<i64>
      %c_43 = stablehlo.constant dense<0> : tensor<i64>
      %39 = stablehlo.compare GT, %38, %c_43, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %40 = stablehlo.convert %39 : (tensor<i1>) -> tensor<i32>
      %41:9 = stablehlo.optimization_barrier %40, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_20, %iterArg_21, %iterArg_22, %iterArg_23 : tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      %42:4 = "stablehlo.case"(%41#0) ({
        stablehlo.return %41#5, %41#6, %41#7, %41#8 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }, {
        stablehlo.return %41#1, %41#2, %41#3, %41#4 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }) : (tensor<i32>) -> (tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>)
      %c_44 = stablehlo.constant dense<2> : tensor<i64>
      %c_45 = stablehlo.constant dense<0> : tensor<i64>
      %43 = stablehlo.compare EQ, %c_44, %c_45, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %c_46 = stablehlo.constant dense<0> : tensor<i64>
      %44 = stablehlo.compare NE, %iterArg_17, %c_46, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %45 = stablehlo.and %43, %44 : tensor<i1>
      %c_47 = stablehlo.constant dense<1> : tensor<i64>
      %c_48 = stablehlo.constant dense<0> : tensor<i64>
      %46 = stablehlo.select %45, %c_48, %c_47 : tensor<i1>, tensor<i64>
      %c_49 = stablehlo.constant dense<1> : tensor<i64>
      %47 = stablehlo.and %iterArg_17, %c_49 : tensor<i64>
      %c_50 = stablehlo.constant dense<2> : tensor<i64>
      %48 = stablehlo.multiply %46, %c_50 : tensor<i64>
      %c_51 = stablehlo.constant dense<0> : tensor<i64>
      %49 = stablehlo.compare NE, %47, %c_51, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %50 = stablehlo.select %49, %48, %46 : tensor<i1>, tensor<i64>
      %c_52 = stablehlo.constant dense<2> : tensor<i64>
      %c_53 = stablehlo.constant dense<2> : tensor<i64>
      %51 = stablehlo.multiply %c_52, %c_53 : tensor<i64>
      %c_54 = stablehlo.constant dense<1> : tensor<i64>
      %52 = stablehlo.shift_right_logical %iterArg_17, %c_54 : tensor<i64>
      %c_55 = stablehlo.constant dense<1> : tensor<i64>
      %53 = stablehlo.and %52, %c_55 : tensor<i64>
      %54 = stablehlo.multiply %50, %51 : tensor<i64>
      %c_56 = stablehlo.constant dense<0> : tensor<i64>
      %55 = stablehlo.compare NE, %53, %c_56, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %56 = stablehlo.select %55, %54, %50 : tensor<i1>, tensor<i64>
      %57 = stablehlo.multiply %51, %51 : tensor<i64>
      %c_57 = stablehlo.constant dense<1> : tensor<i64>
      %58 = stablehlo.shift_right_logical %52, %c_57 : tensor<i64>
      %c_58 = stablehlo.constant dense<1> : tensor<i64>
      %59 = stablehlo.and %58, %c_58 : tensor<i64>
      %60 = stablehlo.multiply %56, %57 : tensor<i64>
      %c_59 = stablehlo.constant dense<0> : tensor<i64>
      %61 = stablehlo.compare NE, %59, %c_59, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %62 = stablehlo.select %61, %60, %56 : tensor<i1>, tensor<i64>
      %63 = stablehlo.multiply %57, %57 : tensor<i64>
      %c_60 = stablehlo.constant dense<1> : tensor<i64>
      %64 = stablehlo.shift_right_logical %58, %c_60 : tensor<i64>
      %c_61 = stablehlo.constant dense<1> : tensor<i64>
      %65 = stablehlo.and %64, %c_61 : tensor<i64>
      %66 = stablehlo.multiply %62, %63 : tensor<i64>
      %c_62 = stablehlo.constant dense<0> : tensor<i64>
      %67 = stablehlo.compare NE, %65, %c_62, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %68 = stablehlo.select %67, %66, %62 : tensor<i1>, tensor<i64>
      %69 = stablehlo.multiply %63, %63 : tensor<i64>
      %c_63 = stablehlo.constant dense<1> : tensor<i64>
      %70 = stablehlo.shift_right_logical %64, %c_63 : tensor<i64>
      %c_64 = stablehlo.constant dense<1> : tensor<i64>
      %71 = stablehlo.and %70, %c_64 : tensor<i64>
      %72 = stablehlo.multiply %68, %69 : tensor<i64>
      %c_65 = stablehlo.constant dense<0> : tensor<i64>
      %73 = stablehlo.compare NE, %71, %c_65, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %74 = stablehlo.select %73, %72, %68 : tensor<i1>, tensor<i64>
      %75 = stablehlo.multiply %69, %69 : tensor<i64>
      %c_66 = stablehlo.constant dense<1> : tensor<i64>
      %76 = stablehlo.shift_right_logical %70, %c_66 : tensor<i64>
      %c_67 = stablehlo.constant dense<1> : tensor<i64>
      %77 = stablehlo.and %76, %c_67 : tensor<i64>
      %78 = stablehlo.multiply %74, %75 : tensor<i64>
      %c_68 = stablehlo.constant dense<0> : tensor<i64>
      %79 = stablehlo.compare NE, %77, %c_68, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %80 = stablehlo.select %79, %78, %74 : tensor<i1>, tensor<i64>
      %81 = stablehlo.negate %42#2 : tensor<f64>
      %82 = stablehlo.multiply %iterArg_13, %42#1 : tensor<2xf64>
      %83 = stablehlo.multiply %82, %42#1 : tensor<2xf64>
      %cst_69 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
      %84 = stablehlo.reduce(%83 init: %cst_69) applies stablehlo.add across dimensions = [0] : (tensor<2xf64>, tensor<f64>) -> tensor<f64>
      %cst_70 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
      %85 = stablehlo.multiply %cst_70, %84 : tensor<f64>
      %86 = stablehlo.add %81, %85 : tensor<f64>
      %87 = stablehlo.subtract %iterArg_14, %86 : tensor<f64>
      %88 = stablehlo.compare NE, %87, %87, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
      %cst_71 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
      %89 = stablehlo.select %88, %cst_71, %87 : tensor<i1>, tensor<f64>
      %90:9 = stablehlo.optimization_barrier %80, %38, %iterArg_13, %iterArg_14, %42#0, %89, %42#1, %42#2, %42#3 : tensor<i64>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      %c_72 = stablehlo.constant dense<0> : tensor<i64>
      %91 = stablehlo.compare LT, %c_72, %90#0, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %c_73 = stablehlo.constant dense<false> : tensor<i1>
      %92 = stablehlo.not %c_73 : tensor<i1>
      %93 = stablehlo.and %91, %92 : tensor<i1>
      %94 = stablehlo.and %93, %92 : tensor<i1>
      %c_74 = stablehlo.constant dense<0> : tensor<i32>
      %c_75 = stablehlo.constant dense<0> : tensor<i64>
      %c_76 = stablehlo.constant dense<false> : tensor<i1>
      %c_77 = stablehlo.constant dense<false> : tensor<i1>
      %95:19 = stablehlo.while(%iterArg_84 = %90#0, %iterArg_85 = %90#1, %iterArg_86 = %90#2, %iterArg_87 = %90#3, %iterArg_88 = %94, %iterArg_89 = %c_74, %iterArg_90 = %c_75, %iterArg_91 = %90#4, %iterArg_92 = %90#5, %iterArg_93 = %90#4, %iterArg_94 = %90#6, %iterArg_95 = %90#7, %iterArg_96 = %90#8, %iterArg_97 = %90#4, %iterArg_98 = %90#6, %iterArg_99 = %90#7, %iterArg_100 = %90#8, %iterArg_101 = %c_76, %iterArg_102 = %c_77) : tensor<i64>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<i1>, tensor<i32>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<i1>, tensor<i1>
      cond {
        stablehlo.return %iterArg_88 : tensor<i1>
      } do {
        %114 = stablehlo.convert %iterArg_85 : (tensor<i64>) -> tensor<f64>
        %cst_103 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
        %115 = stablehlo.multiply %114, %cst_103 : tensor<f64>
        %cst_104 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
        %116 = stablehlo.multiply %115, %cst_104 : tensor<f64>
        %117 = stablehlo.broadcast_in_dim %116, dims = [] : (tensor<f64>) -> tensor<2xf64>
        %118 = stablehlo.multiply %117, %iterArg_100 : tensor<2xf64>
        %119 = stablehlo.add %iterArg_98, %118 : tensor<2xf64>
        %120 = stablehlo.multiply %iterArg_86, %119 : tensor<2xf64>
        %cst_105 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
        %cst_106 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %121 = stablehlo.multiply %cst_105, %cst_106 : tensor<f64>
        %122 = stablehlo.dot_general %121, %120, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<f64>, tensor<2xf64>) -> tensor<2xf64>
        %123 = stablehlo.dot_general %121, %119, contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<f64>, tensor<2xf64>) -> tensor<2xf64>
        %124 = stablehlo.multiply %iterArg_86, %123 : tensor<2xf64>
        %125 = stablehlo.add %122, %124 : tensor<2xf64>
        %cst_107 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %126 = stablehlo.multiply %115, %cst_107 : tensor<f64>
        %127 = stablehlo.broadcast_in_dim %126, dims = [] : (tensor<f64>) -> tensor<2xf64>
        %128 = stablehlo.multiply %127, %125 : tensor<2xf64>
        %129 = stablehlo.add %iterArg_97, %128 : tensor<2xf64>
        %130 = stablehlo.multiply %129, %129 : tensor<2xf64>
        %cst_108 = stablehlo.constant dense<2.000000e+00> : tensor<f64>
        %131 = stablehlo.broadcast_in_dim %cst_108, dims = [] : (tensor<f64>) -> tensor<2xf64>
        %132 = stablehlo.multiply %131, %129 : tensor<2xf64>
        %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %133 = stablehlo.reduce(%130 init: %cst_109) applies stablehlo.add across dimensions = [0] : (tensor<2xf64>, tensor<f64>) -> tensor<f64>
        %cst_110 = stablehlo.constant dense<-5.000000e-01> : tensor<f64>
        %134 = stablehlo.multiply %cst_110, %133 : tensor<f64>
        %cst_111 = stablehlo.constant dense<-5.000000e-01> : tensor<f64>
        %cst_112 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %135 = stablehlo.multiply %cst_111, %cst_112 : tensor<f64>
        %136 = stablehlo.broadcast_in_dim %135, dims = [] : (tensor<f64>) -> tensor<2xf64>
        %137 = stablehlo.multiply %136, %132 : tensor<2xf64>
        %138 = stablehlo.broadcast_in_dim %116, dims = [] : (tensor<f64>) -> tensor<2xf64>
        %139 = stablehlo.multiply %138, %137 : tensor<2xf64>
        %140 = stablehlo.add %119, %139 : tensor<2xf64>
        %141 = stablehlo.negate %134 : tensor<f64>
        %142 = stablehlo.multiply %iterArg_86, %140 : tensor<2xf64>
        %143 = stablehlo.multiply %142, %140 : tensor<2xf64>
        %cst_113 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %144 = stablehlo.reduce(%143 init: %cst_113) applies stablehlo.add across dimensions = [0] : (tensor<2xf64>, tensor<f64>) -> tensor<f64>
        %cst_114 = stablehlo.constant dense<5.000000e-01> : tensor<f64>
        %145 = stablehlo.multiply %cst_114, %144 : tensor<f64>
        %146 = stablehlo.add %141, %145 : tensor<f64>
        %147 = stablehlo.subtract %iterArg_87, %146 : tensor<f64>
        %148 = stablehlo.compare NE, %147, %147, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %cst_115 = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
        %149 = stablehlo.select %148, %cst_115, %147 : tensor<i1>, tensor<f64>
        %150 = stablehlo.negate %149 : tensor<f64>
        %cst_116 = stablehlo.constant dense<1.000000e+03> : tensor<f64>
        %151 = stablehlo.compare GT, %150, %cst_116, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %c_117 = stablehlo.constant dense<0> : tensor<i64>
        %152 = stablehlo.compare EQ, %iterArg_90, %c_117, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
        %153 = stablehlo.convert %152 : (tensor<i1>) -> tensor<i32>
        %154:10 = stablehlo.optimization_barrier %153, %129, %140, %134, %137, %149, %iterArg_93, %iterArg_94, %iterArg_95, %iterArg_96 : tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
        %155:6 = "stablehlo.case"(%154#0) ({
          %cst_123 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
          %169 = stablehlo.broadcast_in_dim %cst_123, dims = [] : (tensor<f64>) -> tensor<2xf64>
          %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
          stablehlo.return %154#6, %154#7, %154#8, %154#9, %169, %cst_124 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>
        }, {
          stablehlo.return %154#1, %154#2, %154#3, %154#4, %154#1, %154#5 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>
        }) : (tensor<i32>) -> (tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>)
        %c_118 = stablehlo.constant dense<0> : tensor<i32>
        %156 = stablehlo.compare LT, %iterArg_89, %c_118, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %157 = stablehlo.select %156, %iterArg_91, %155#4 : tensor<i1>, tensor<2xf64>
        %158 = stablehlo.select %156, %iterArg_92, %155#5 : tensor<i1>, tensor<f64>
        %159 = stablehlo.select %156, %iterArg_99, %134 : tensor<i1>, tensor<f64>
        %160 = stablehlo.select %156, %iterArg_101, %151 : tensor<i1>, tensor<i1>
        %c_119 = stablehlo.constant dense<false> : tensor<i1>
        %161 = stablehlo.select %156, %iterArg_102, %c_119 : tensor<i1>, tensor<i1>
        %c_120 = stablehlo.constant dense<0> : tensor<i64>
        %162 = stablehlo.compare LT, %c_120, %iterArg_84, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
        %163 = stablehlo.not %161 : tensor<i1>
        %164 = stablehlo.and %162, %163 : tensor<i1>
        %165 = stablehlo.not %160 : tensor<i1>
        %166 = stablehlo.and %164, %165 : tensor<i1>
        %167 = stablehlo.and %iterArg_88, %166 : tensor<i1>
        %c_121 = stablehlo.constant dense<1> : tensor<i32>
        %168 = stablehlo.add %iterArg_89, %c_121 : tensor<i32>
        %c_122 = stablehlo.constant dense<0> : tensor<i64>
        stablehlo.return %iterArg_84, %iterArg_85, %iterArg_86, %iterArg_87, %167, %168, %c_122, %157, %158, %155#0, %155#1, %155#2, %155#3, %129, %140, %159, %137, %160, %161 : tensor<i64>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<i1>, tensor<i32>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<i1>, tensor<i1>
      }
      %96:9 = stablehlo.optimization_barrier %40, %95#9, %95#10, %95#11, %95#12, %95#13, %95#14, %95#15, %95#16 : tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      %97:8 = "stablehlo.case"(%96#0) ({
        stablehlo.return %96#5, %96#6, %96#7, %96#8, %96#1, %96#2, %96#3, %96#4 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }, {
        stablehlo.return %96#1, %96#2, %96#3, %96#4, %96#5, %96#6, %96#7, %96#8 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }) : (tensor<i32>) -> (tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>)
      %98 = stablehlo.or %95#17, %95#18 : tensor<i1>
      %99 = stablehlo.convert %98 : (tensor<i1>) -> tensor<i32>
      %100:6 = stablehlo.optimization_barrier %99, %18, %iterArg_18, %iterArg_19, %95#7, %95#8 : tensor<i32>, tensor<2xui32>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<f64>
      %101:2 = "stablehlo.case"(%100#0) ({
        %114 = stablehlo.subtract %100#5, %100#3 : tensor<f64>
        %115 = stablehlo.exponential %114 : tensor<f64>
        %cst_84 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %116 = stablehlo.minimum %cst_84, %115 : tensor<f64>
        %117 = stablehlo.slice %100#1 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
        %118 = stablehlo.reshape %117 : (tensor<1xui32>) -> tensor<ui32>
        %119 = stablehlo.slice %100#1 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
        %120 = stablehlo.reshape %119 : (tensor<1xui32>) -> tensor<ui32>
        %c_85 = stablehlo.constant dense<0> : tensor<ui32>
        %c_86 = stablehlo.constant dense<0> : tensor<ui32>
        %121:2 = func.call @threefry2x32_1(%118, %120, %c_85, %c_86) : (tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>) -> (tensor<ui32>, tensor<ui32>)
        %122 = stablehlo.convert %121#0 : (tensor<ui32>) -> tensor<ui64>
        %123 = stablehlo.convert %121#1 : (tensor<ui32>) -> tensor<ui64>
        %c_87 = stablehlo.constant dense<32> : tensor<ui64>
        %124 = stablehlo.shift_left %122, %c_87 : tensor<ui64>
        %125 = stablehlo.or %124, %123 : tensor<ui64>
        %c_88 = stablehlo.constant dense<12> : tensor<ui64>
        %126 = stablehlo.shift_right_logical %125, %c_88 : tensor<ui64>
        %c_89 = stablehlo.constant dense<4607182418800017408> : tensor<ui64>
        %127 = stablehlo.or %126, %c_89 : tensor<ui64>
        %128 = stablehlo.bitcast_convert %127 : (tensor<ui64>) -> tensor<f64>
        %cst_90 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %129 = stablehlo.subtract %128, %cst_90 : tensor<f64>
        %cst_91 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %130 = stablehlo.subtract %cst_91, %cst_92 : tensor<f64>
        %131 = stablehlo.multiply %129, %130 : tensor<f64>
        %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %132 = stablehlo.add %131, %cst_93 : tensor<f64>
        %133 = stablehlo.reshape %132 : (tensor<f64>) -> tensor<f64>
        %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %134 = stablehlo.maximum %cst_94, %133 : tensor<f64>
        %135 = stablehlo.compare LT, %134, %116, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %136 = stablehlo.maximum %100#3, %100#5 : tensor<f64>
        %137 = stablehlo.subtract %100#3, %100#5 : tensor<f64>
        %138 = stablehlo.compare NE, %137, %137, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %139 = stablehlo.add %100#3, %100#5 : tensor<f64>
        %140 = stablehlo.abs %137 : tensor<f64>
        %141 = stablehlo.negate %140 : tensor<f64>
        %142 = stablehlo.exponential %141 : tensor<f64>
        %cst_95 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %143 = stablehlo.add %142, %cst_95 : tensor<f64>
        %cst_96 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %144 = stablehlo.subtract %143, %cst_96 : tensor<f64>
        %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f64>
        %145 = stablehlo.compare EQ, %144, %cst_97, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %cst_98 = stablehlo.constant dense<0x7FF0000000000000> : tensor<f64>
        %146 = stablehlo.compare EQ, %143, %cst_98, FLOAT : (tensor<f64>, tensor<f64>) -> tensor<i1>
        %147 = stablehlo.or %145, %146 : tensor<i1>
        %148 = stablehlo.select %146, %143, %142 : tensor<i1>, tensor<f64>
        %149 = stablehlo.log %143 : tensor<f64>
        %cst_99 = stablehlo.constant dense<1.000000e+00> : tensor<f64>
        %150 = stablehlo.select %147, %cst_99, %144 : tensor<i1>, tensor<f64>
        %151 = stablehlo.divide %142, %150 : tensor<f64>
        %152 = stablehlo.multiply %149, %151 : tensor<f64>
        %153 = stablehlo.select %147, %148, %152 : tensor<i1>, tensor<f64>
        %154 = stablehlo.add %136, %153 : tensor<f64>
        %155 = stablehlo.select %138, %139, %154 : tensor<i1>, tensor<f64>
        %156 = stablehlo.convert %135 : (tensor<i1>) -> tensor<i32>
        %157:3 = stablehlo.optimization_barrier %156, %100#4, %100#2 : tensor<i32>, tensor<2xf64>, tensor<2xf64>
        %158 = "stablehlo.case"(%157#0) ({
          stablehlo.return %157#2 : tensor<2xf64>
        }, {
          stablehlo.return %157#1 : tensor<2xf64>
        }) : (tensor<i32>) -> tensor<2xf64>
        stablehlo.return %158, %155 : tensor<2xf64>, tensor<f64>
      }, {
        stablehlo.return %100#2, %100#3 : tensor<2xf64>, tensor<f64>
      }) : (tensor<i32>) -> (tensor<2xf64>, tensor<f64>)
      %102:17 = stablehlo.optimization_barrier %40, %iterArg_20, %iterArg_21, %iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %97#0, %97#1, %97#2, %97#3, %97#4, %97#5, %97#6, %97#7 : tensor<i32>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      %103:8 = "stablehlo.case"(%102#0) ({
        stablehlo.return %102#9, %102#10, %102#11, %102#12, %102#5, %102#6, %102#7, %102#8 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }, {
        stablehlo.return %102#1, %102#2, %102#3, %102#4, %102#13, %102#14, %102#15, %102#16 : tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>
      }) : (tensor<i32>) -> (tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>)
      %c_78 = stablehlo.constant dense<0> : tensor<i32>
      %104 = stablehlo.compare LT, %iterArg_16, %c_78, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %105 = stablehlo.select %104, %iterArg_28, %95#17 : tensor<i1>, tensor<i1>
      %c_79 = stablehlo.constant dense<false> : tensor<i1>
      %106 = stablehlo.select %104, %iterArg_29, %c_79 : tensor<i1>, tensor<i1>
      %c_80 = stablehlo.constant dense<0> : tensor<i64>
      %c_81 = stablehlo.constant dense<3> : tensor<i64>
      %107 = stablehlo.compare LT, %c_80, %c_81, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %108 = stablehlo.not %105 : tensor<i1>
      %109 = stablehlo.and %107, %108 : tensor<i1>
      %110 = stablehlo.not %106 : tensor<i1>
      %111 = stablehlo.and %109, %110 : tensor<i1>
      %112 = stablehlo.and %iterArg_15, %111 : tensor<i1>
      %c_82 = stablehlo.constant dense<1> : tensor<i32>
      %113 = stablehlo.add %iterArg_16, %c_82 : tensor<i32>
      %c_83 = stablehlo.constant dense<0> : tensor<i64>
      stablehlo.return %iterArg, %iterArg_13, %iterArg_14, %112, %113, %c_83, %101#0, %101#1, %103#0, %103#1, %103#2, %103#3, %103#4, %103#5, %103#6, %103#7, %105, %106 : tensor<2xui32>, tensor<2xf64>, tensor<f64>, tensor<i1>, tensor<i32>, tensor<i64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<f64>, tensor<2xf64>, tensor<i1>, tensor<i1>
    }
    return %9#6 : tensor<2xf64>
  }
  func.func private @_threefry_fold_in(%arg0: tensor<2xui32>, %arg1: tensor<ui32>) -> tensor<2xui32> {
    %c = stablehlo.constant dense<32> : tensor<ui32>
    %0 = stablehlo.shift_right_logical %arg1, %c : tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %c_0 = stablehlo.constant dense<4294967295> : tensor<ui32>
    %2 = stablehlo.and %arg1, %c_0 : tensor<ui32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %4 = stablehlo.concatenate %1, %3, dim = 0 : (tensor<1xui32>, tensor<1xui32>) -> tensor<2xui32>
    %5 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %6 = stablehlo.reshape %5 : (tensor<1xui32>) -> tensor<ui32>
    %7 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %8 = stablehlo.reshape %7 : (tensor<1xui32>) -> tensor<ui32>
    %9 = stablehlo.slice %4 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %10 = stablehlo.slice %4 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %11:2 = call @threefry2x32(%6, %8, %9, %10) : (tensor<ui32>, tensor<ui32>, tensor<1xui32>, tensor<1xui32>) -> (tensor<1xui32>, tensor<1xui32>)
    %12 = stablehlo.concatenate %11#0, %11#1, dim = 0 : (tensor<1xui32>, tensor<1xui32>) -> tensor<2xui32>
    return %12 : tensor<2xui32>
  }
  func.func private @threefry2x32(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<1xui32>, %arg3: tensor<1xui32>) -> (tensor<1xui32>, tensor<1xui32>) {
    %c = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_0 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c_1 = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c_1 : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<1xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<1xui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i64>
    %c_3 = stablehlo.constant dense<0> : tensor<i64>
    %6:9 = stablehlo.while(%iterArg = %c_3, %iterArg_4 = %c_2, %iterArg_5 = %3, %iterArg_6 = %5, %iterArg_7 = %arg1, %iterArg_8 = %1, %iterArg_9 = %arg0, %iterArg_10 = %c, %iterArg_11 = %c_0) : tensor<i64>, tensor<i64>, tensor<1xui32>, tensor<1xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %c_12 = stablehlo.constant dense<5> : tensor<i64>
      %7 = stablehlo.compare LT, %iterArg, %c_12, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    } do {
      %c_12 = stablehlo.constant dense<1> : tensor<i64>
      %7 = stablehlo.add %iterArg_4, %c_12 : tensor<i64>
      %8 = stablehlo.slice %iterArg_10 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
      %9 = stablehlo.reshape %8 : (tensor<1xui32>) -> tensor<ui32>
      %10 = stablehlo.slice %iterArg_10 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
      %11 = stablehlo.reshape %10 : (tensor<1xui32>) -> tensor<ui32>
      %12 = stablehlo.slice %iterArg_10 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
      %13 = stablehlo.reshape %12 : (tensor<1xui32>) -> tensor<ui32>
      %14 = stablehlo.slice %iterArg_10 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
      %15 = stablehlo.reshape %14 : (tensor<1xui32>) -> tensor<ui32>
      %16 = stablehlo.add %iterArg_5, %iterArg_6 : tensor<1xui32>
      %17 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %18 = stablehlo.shift_left %iterArg_6, %17 : tensor<1xui32>
      %c_13 = stablehlo.constant dense<32> : tensor<ui32>
      %19 = stablehlo.subtract %c_13, %9 : tensor<ui32>
      %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %21 = stablehlo.shift_right_logical %iterArg_6, %20 : tensor<1xui32>
      %22 = stablehlo.or %18, %21 : tensor<1xui32>
      %23 = stablehlo.xor %16, %22 : tensor<1xui32>
      %24 = stablehlo.add %16, %23 : tensor<1xui32>
      %25 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %26 = stablehlo.shift_left %23, %25 : tensor<1xui32>
      %c_14 = stablehlo.constant dense<32> : tensor<ui32>
      %27 = stablehlo.subtract %c_14, %11 : tensor<ui32>
      %28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %29 = stablehlo.shift_right_logical %23, %28 : tensor<1xui32>
      %30 = stablehlo.or %26, %29 : tensor<1xui32>
      %31 = stablehlo.xor %24, %30 : tensor<1xui32>
      %32 = stablehlo.add %24, %31 : tensor<1xui32>
      %33 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %34 = stablehlo.shift_left %31, %33 : tensor<1xui32>
      %c_15 = stablehlo.constant dense<32> : tensor<ui32>
      %35 = stablehlo.subtract %c_15, %13 : tensor<ui32>
      %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %37 = stablehlo.shift_right_logical %31, %36 : tensor<1xui32>
      %38 = stablehlo.or %34, %37 : tensor<1xui32>
      %39 = stablehlo.xor %32, %38 : tensor<1xui32>
      %40 = stablehlo.add %32, %39 : tensor<1xui32>
      %41 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %42 = stablehlo.shift_left %39, %41 : tensor<1xui32>
      %c_16 = stablehlo.constant dense<32> : tensor<ui32>
      %43 = stablehlo.subtract %c_16, %15 : tensor<ui32>
      %44 = stablehlo.broadcast_in_dim %43, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %45 = stablehlo.shift_right_logical %39, %44 : tensor<1xui32>
      %46 = stablehlo.or %42, %45 : tensor<1xui32>
      %47 = stablehlo.xor %40, %46 : tensor<1xui32>
      %48 = stablehlo.broadcast_in_dim %iterArg_7, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %49 = stablehlo.add %40, %48 : tensor<1xui32>
      %50 = stablehlo.broadcast_in_dim %iterArg_8, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %51 = stablehlo.add %47, %50 : tensor<1xui32>
      %c_17 = stablehlo.constant dense<1> : tensor<i64>
      %52 = stablehlo.add %iterArg_4, %c_17 : tensor<i64>
      %53 = stablehlo.convert %52 : (tensor<i64>) -> tensor<ui32>
      %54 = stablehlo.broadcast_in_dim %53, dims = [] : (tensor<ui32>) -> tensor<1xui32>
      %55 = stablehlo.add %51, %54 : tensor<1xui32>
      %c_18 = stablehlo.constant dense<1> : tensor<i64>
      %56 = stablehlo.add %iterArg, %c_18 : tensor<i64>
      stablehlo.return %56, %7, %49, %55, %iterArg_8, %iterArg_9, %iterArg_7, %iterArg_11, %iterArg_10 : tensor<i64>, tensor<i64>, tensor<1xui32>, tensor<1xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    return %6#2, %6#3 : tensor<1xui32>, tensor<1xui32>
  }
  func.func private @_threefry_split(%arg0: tensor<2xui32>) -> tensor<3x2xui32> {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %3 = stablehlo.reshape %2 : (tensor<1xui32>) -> tensor<ui32>
    %4 = stablehlo.iota dim = 0 : tensor<3xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %5 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<3xui64>
    %6 = stablehlo.multiply %5, %4 : tensor<3xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<3xui64>
    %8 = stablehlo.shift_right_logical %6, %7 : tensor<3xui64>
    %9 = stablehlo.convert %6 : (tensor<3xui64>) -> tensor<3xui32>
    %10 = stablehlo.convert %8 : (tensor<3xui64>) -> tensor<3xui32>
    %11:2 = call @threefry2x32_0(%1, %3, %10, %9) : (tensor<ui32>, tensor<ui32>, tensor<3xui32>, tensor<3xui32>) -> (tensor<3xui32>, tensor<3xui32>)
    %12 = stablehlo.broadcast_in_dim %11#0, dims = [0] : (tensor<3xui32>) -> tensor<3x1xui32>
    %13 = stablehlo.broadcast_in_dim %11#1, dims = [0] : (tensor<3xui32>) -> tensor<3x1xui32>
    %14 = stablehlo.concatenate %12, %13, dim = 1 : (tensor<3x1xui32>, tensor<3x1xui32>) -> tensor<3x2xui32>
    return %14 : tensor<3x2xui32>
  }
  func.func private @threefry2x32_0(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<3xui32>, %arg3: tensor<3xui32>) -> (tensor<3xui32>, tensor<3xui32>) {
    %c = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_0 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c_1 = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c_1 : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<3xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<3xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<3xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<3xui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i64>
    %c_3 = stablehlo.constant dense<0> : tensor<i64>
    %6:9 = stablehlo.while(%iterArg = %c_3, %iterArg_4 = %c_2, %iterArg_5 = %3, %iterArg_6 = %5, %iterArg_7 = %arg1, %iterArg_8 = %1, %iterArg_9 = %arg0, %iterArg_10 = %c, %iterArg_11 = %c_0) : tensor<i64>, tensor<i64>, tensor<3xui32>, tensor<3xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %c_12 = stablehlo.constant dense<5> : tensor<i64>
      %7 = stablehlo.compare LT, %iterArg, %c_12, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    } do {
      %c_12 = stablehlo.constant dense<1> : tensor<i64>
      %7 = stablehlo.add %iterArg_4, %c_12 : tensor<i64>
      %8 = stablehlo.slice %iterArg_10 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
      %9 = stablehlo.reshape %8 : (tensor<1xui32>) -> tensor<ui32>
      %10 = stablehlo.slice %iterArg_10 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
      %11 = stablehlo.reshape %10 : (tensor<1xui32>) -> tensor<ui32>
      %12 = stablehlo.slice %iterArg_10 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
      %13 = stablehlo.reshape %12 : (tensor<1xui32>) -> tensor<ui32>
      %14 = stablehlo.slice %iterArg_10 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
      %15 = stablehlo.reshape %14 : (tensor<1xui32>) -> tensor<ui32>
      %16 = stablehlo.add %iterArg_5, %iterArg_6 : tensor<3xui32>
      %17 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %18 = stablehlo.shift_left %iterArg_6, %17 : tensor<3xui32>
      %c_13 = stablehlo.constant dense<32> : tensor<ui32>
      %19 = stablehlo.subtract %c_13, %9 : tensor<ui32>
      %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %21 = stablehlo.shift_right_logical %iterArg_6, %20 : tensor<3xui32>
      %22 = stablehlo.or %18, %21 : tensor<3xui32>
      %23 = stablehlo.xor %16, %22 : tensor<3xui32>
      %24 = stablehlo.add %16, %23 : tensor<3xui32>
      %25 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %26 = stablehlo.shift_left %23, %25 : tensor<3xui32>
      %c_14 = stablehlo.constant dense<32> : tensor<ui32>
      %27 = stablehlo.subtract %c_14, %11 : tensor<ui32>
      %28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %29 = stablehlo.shift_right_logical %23, %28 : tensor<3xui32>
      %30 = stablehlo.or %26, %29 : tensor<3xui32>
      %31 = stablehlo.xor %24, %30 : tensor<3xui32>
      %32 = stablehlo.add %24, %31 : tensor<3xui32>
      %33 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %34 = stablehlo.shift_left %31, %33 : tensor<3xui32>
      %c_15 = stablehlo.constant dense<32> : tensor<ui32>
      %35 = stablehlo.subtract %c_15, %13 : tensor<ui32>
      %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %37 = stablehlo.shift_right_logical %31, %36 : tensor<3xui32>
      %38 = stablehlo.or %34, %37 : tensor<3xui32>
      %39 = stablehlo.xor %32, %38 : tensor<3xui32>
      %40 = stablehlo.add %32, %39 : tensor<3xui32>
      %41 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %42 = stablehlo.shift_left %39, %41 : tensor<3xui32>
      %c_16 = stablehlo.constant dense<32> : tensor<ui32>
      %43 = stablehlo.subtract %c_16, %15 : tensor<ui32>
      %44 = stablehlo.broadcast_in_dim %43, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %45 = stablehlo.shift_right_logical %39, %44 : tensor<3xui32>
      %46 = stablehlo.or %42, %45 : tensor<3xui32>
      %47 = stablehlo.xor %40, %46 : tensor<3xui32>
      %48 = stablehlo.broadcast_in_dim %iterArg_7, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %49 = stablehlo.add %40, %48 : tensor<3xui32>
      %50 = stablehlo.broadcast_in_dim %iterArg_8, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %51 = stablehlo.add %47, %50 : tensor<3xui32>
      %c_17 = stablehlo.constant dense<1> : tensor<i64>
      %52 = stablehlo.add %iterArg_4, %c_17 : tensor<i64>
      %53 = stablehlo.convert %52 : (tensor<i64>) -> tensor<ui32>
      %54 = stablehlo.broadcast_in_dim %53, dims = [] : (tensor<ui32>) -> tensor<3xui32>
      %55 = stablehlo.add %51, %54 : tensor<3xui32>
      %c_18 = stablehlo.constant dense<1> : tensor<i64>
      %56 = stablehlo.add %iterArg, %c_18 : tensor<i64>
      stablehlo.return %56, %7, %49, %55, %iterArg_8, %iterArg_9, %iterArg_7, %iterArg_11, %iterArg_10 : tensor<i64>, tensor<i64>, tensor<3xui32>, tensor<3xui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    return %6#2, %6#3 : tensor<3xui32>, tensor<3xui32>
  }
  func.func private @threefry2x32_1(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<ui32>, %arg3: tensor<ui32>) -> (tensor<ui32>, tensor<ui32>) {
    %c = stablehlo.constant dense<[13, 15, 26, 6]> : tensor<4xui32>
    %c_0 = stablehlo.constant dense<[17, 29, 16, 24]> : tensor<4xui32>
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c_1 = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c_1 : tensor<ui32>
    %2 = stablehlo.add %arg2, %arg0 : tensor<ui32>
    %3 = stablehlo.add %arg3, %arg1 : tensor<ui32>
    %c_2 = stablehlo.constant dense<0> : tensor<i64>
    %c_3 = stablehlo.constant dense<0> : tensor<i64>
    %4:9 = stablehlo.while(%iterArg = %c_3, %iterArg_4 = %c_2, %iterArg_5 = %2, %iterArg_6 = %3, %iterArg_7 = %arg1, %iterArg_8 = %1, %iterArg_9 = %arg0, %iterArg_10 = %c, %iterArg_11 = %c_0) : tensor<i64>, tensor<i64>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    cond {
      %c_12 = stablehlo.constant dense<5> : tensor<i64>
      %5 = stablehlo.compare LT, %iterArg, %c_12, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    } do {
      %c_12 = stablehlo.constant dense<1> : tensor<i64>
      %5 = stablehlo.add %iterArg_4, %c_12 : tensor<i64>
      %6 = stablehlo.slice %iterArg_10 [0:1] : (tensor<4xui32>) -> tensor<1xui32>
      %7 = stablehlo.reshape %6 : (tensor<1xui32>) -> tensor<ui32>
      %8 = stablehlo.slice %iterArg_10 [1:2] : (tensor<4xui32>) -> tensor<1xui32>
      %9 = stablehlo.reshape %8 : (tensor<1xui32>) -> tensor<ui32>
      %10 = stablehlo.slice %iterArg_10 [2:3] : (tensor<4xui32>) -> tensor<1xui32>
      %11 = stablehlo.reshape %10 : (tensor<1xui32>) -> tensor<ui32>
      %12 = stablehlo.slice %iterArg_10 [3:4] : (tensor<4xui32>) -> tensor<1xui32>
      %13 = stablehlo.reshape %12 : (tensor<1xui32>) -> tensor<ui32>
      %14 = stablehlo.add %iterArg_5, %iterArg_6 : tensor<ui32>
      %15 = stablehlo.shift_left %iterArg_6, %7 : tensor<ui32>
      %c_13 = stablehlo.constant dense<32> : tensor<ui32>
      %16 = stablehlo.subtract %c_13, %7 : tensor<ui32>
      %17 = stablehlo.shift_right_logical %iterArg_6, %16 : tensor<ui32>
      %18 = stablehlo.or %15, %17 : tensor<ui32>
      %19 = stablehlo.xor %14, %18 : tensor<ui32>
      %20 = stablehlo.add %14, %19 : tensor<ui32>
      %21 = stablehlo.shift_left %19, %9 : tensor<ui32>
      %c_14 = stablehlo.constant dense<32> : tensor<ui32>
      %22 = stablehlo.subtract %c_14, %9 : tensor<ui32>
      %23 = stablehlo.shift_right_logical %19, %22 : tensor<ui32>
      %24 = stablehlo.or %21, %23 : tensor<ui32>
      %25 = stablehlo.xor %20, %24 : tensor<ui32>
      %26 = stablehlo.add %20, %25 : tensor<ui32>
      %27 = stablehlo.shift_left %25, %11 : tensor<ui32>
      %c_15 = stablehlo.constant dense<32> : tensor<ui32>
      %28 = stablehlo.subtract %c_15, %11 : tensor<ui32>
      %29 = stablehlo.shift_right_logical %25, %28 : tensor<ui32>
      %30 = stablehlo.or %27, %29 : tensor<ui32>
      %31 = stablehlo.xor %26, %30 : tensor<ui32>
      %32 = stablehlo.add %26, %31 : tensor<ui32>
      %33 = stablehlo.shift_left %31, %13 : tensor<ui32>
      %c_16 = stablehlo.constant dense<32> : tensor<ui32>
      %34 = stablehlo.subtract %c_16, %13 : tensor<ui32>
      %35 = stablehlo.shift_right_logical %31, %34 : tensor<ui32>
      %36 = stablehlo.or %33, %35 : tensor<ui32>
      %37 = stablehlo.xor %32, %36 : tensor<ui32>
      %38 = stablehlo.add %32, %iterArg_7 : tensor<ui32>
      %39 = stablehlo.add %37, %iterArg_8 : tensor<ui32>
      %c_17 = stablehlo.constant dense<1> : tensor<i64>
      %40 = stablehlo.add %iterArg_4, %c_17 : tensor<i64>
      %41 = stablehlo.convert %40 : (tensor<i64>) -> tensor<ui32>
      %42 = stablehlo.add %39, %41 : tensor<ui32>
      %c_18 = stablehlo.constant dense<1> : tensor<i64>
      %43 = stablehlo.add %iterArg, %c_18 : tensor<i64>
      stablehlo.return %43, %5, %38, %42, %iterArg_8, %iterArg_9, %iterArg_7, %iterArg_11, %iterArg_10 : tensor<i64>, tensor<i64>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<4xui32>, tensor<4xui32>
    }
    return %4#2, %4#3 : tensor<ui32>, tensor<ui32>
  }
}
