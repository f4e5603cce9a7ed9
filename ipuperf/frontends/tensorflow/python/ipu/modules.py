"""The modules of ``tensorflow.python.ipu``: where each name stands, and which names are refused.

A line without an indent has a module's name below the package and its docstring. Below it are names by the module of
this front end that has them; names whose call is refused, by the reason; names that later releases took away, by what
to use instead.
"""

from __future__ import annotations

from ...surface import table

MODULES = table("""
autoshard: Shards chosen for a graph.
    facade.placing: automatic_sharding ipu_autoshard
config: The configuration of IPUs.
    config: configure_ipu_system get_ipu_config IPUConfig reset_ipu_configuration
    config_options: DeviceConnectionType ExecutionProfileType MergeRemoteBuffersBehaviour SchedulingAlgorithm
        SelectionOrder StochasticRoundingBehaviour
dataset_benchmark: How fast the host produces data.
    facade.datasets: dataset_benchmark infeed_benchmark
dataset_extractor: Data sets as files.
    refused, write the data set with tf.data (Dataset.save): dataset_extractor
    refused, use tf.train.Checkpoint or tf.compat.v1.train.Saver: export_variables
distributed: Programs of several instances, of which there is one here.
    facade.distributed: allgather allreduce broadcast
distributed.host_collective_ops: Collectives between processes.
    facade.distributed: allgather allreduce broadcast
distributed.popdist_strategy: Programs of ``poprun``.
    facade.strategies: PopDistStrategy
gradient_accumulation: How gradients are combined.
    pipelining.accumulation: GradientAccumulationReductionMethod
horovod: Horovod for TensorFlow, of one process.
    facade.horovod: Adasum allgather allreduce Average broadcast init is_homogeneous local_rank local_size rank
        shutdown size Sum
horovod.popdist_strategy: Programs of ``poprun``.
    facade.strategies: PopDistStrategy
ipu_compiler: One program from a function.
    facade.compiling: compile
ipu_estimator: Estimators, which TensorFlow has no more since 2.16.
    keras.arguments: IPUEstimator IPUEstimatorSpec
ipu_infeed_queue: Data for programs.
    programs.infeed: IPUInfeedQueue IPUIterator IPUOwnedIterator
ipu_multi_worker_strategy: Several hosts.
    refused, there is one process; replicas are inside of the program (IPUConfig.auto_select_ipus):
        IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1
ipu_outfeed_queue: Results of programs.
    programs.outfeed: IPUOutfeedMode IPUOutfeedQueue
ipu_pipeline_estimator: Estimators, which TensorFlow has no more since 2.16.
    keras.arguments: IPUPipelineEstimator IPUPipelineEstimatorSpec
ipu_run_config: How an estimator runs.
    keras.arguments: IPURunConfig RunConfig
ipu_session_run_hooks: Hooks of estimators.
    refused, TensorFlow has no estimators any more; fetch values through an IPUOutfeedQueue: IPULoggingTensorHook
ipu_strategy: Where TensorFlow 2 programs run.
    facade.strategies: IPUExtendedV1 IPUStrategy IPUStrategyV1
loops: Loops on the device.
    facade.compiling: repeat while_loop
ops: Operations of the IPU.
ops.all_to_all_op: Exchanges between replicas.
    facade.replicas: all_gather all_to_all
ops.application_compile_op: Programs compiled ahead.
    refused, a program is compiled when it runs; there are no executables to save:
        experimental_application_compile_op
ops.control_flow_ops: Order of operations.
    facade.tensors: barrier
ops.cross_replica_ops: Reductions over the replicas of a program.
    facade.replicas: assume_equal_across_replicas cross_replica_mean cross_replica_sum
ops.custom_ops: Operations of the user's own.
    facade.tensors: codelet_expression_op
    user_ops: precompiled_user_op
    refused, an operation of C++ cannot run here; write it with TensorFlow's operations: cpu_user_op
ops.embedded_runtime: Programs run without TensorFlow's graph.
    refused, there are no Poplar executables; run the program by a session or IPUStrategy.run: RuntimeContext
        embedded_runtime_call embedded_runtime_start
ops.embedding_ops: Lookups in tables.
    facade.embeddings: create_host_embedding embedding_lookup HostEmbedding HostEmbeddingOptimizerSpec
        HostEmbeddingScope HostEmbeddingSGDGAOptimizerSpec
ops.f8_ops: 8-bit floats.
    refused, TensorFlow has no such type here; PopXL programs have 8-bit floats: convert_from_f8 convert_to_f8
        f8_conv_2d f8_conv_3d f8_matmul
ops.functional_ops: Functions whose calls share code.
    facade.tensors: outlined_function
ops.image_ops: Images.
    facade.networks: normalise_image
ops.internal_ops: What looks into a program, and hints to its compiler.
    facade.tensors: print_tensor remap remap_deduce
    refused, carry a counter through the loop (inputs of loops.repeat): get_current_iteration_counter
ops.math_ops: Sums of segments, and products that are made in parts.
    facade.networks: segment_sum serialized_matmul
ops.nn_ops: Functions of neural networks.
    facade.networks: ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss ctc_loss_v2
        ctc_loss_with_log_probs ctc_loss_with_logits gelu hard_sigmoid multi_conv softmax swish
    refused, candidates are sampled by an op that the IPU does not have; compute the full softmax: nce_loss
        sampled_softmax_loss
ops.normalization_ops: Normalisation.
    facade.norms: group_norm instance_norm layer_norm
ops.pipelining_ops, pipelining_ops: Pipelines of several IPUs.
    facade.pipelines: pipeline recomputation_checkpoint
    pipelining.model: OptimizerFunctionOutput PipelineStageOptions
    pipelining.arguments: PipelineSchedule RecomputationMode
ops.rand_ops: Random numbers.
    facade.networks: dropout
ops.reduce_scatter_op: Reductions over replicas of which each one gets a part.
    facade.replicas: KINDS reduce_scatter
ops.replication_ops: Which replica this is.
    facade.replicas: replication_index
ops.rnn_ops: Recurrent layers of PopNN.
    facade.popnn_layers: PopnnAUGRU PopnnDynamicGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM
ops.slicing_ops: Slices of sequences.
    facade.tensors: sequence_slice sequence_slice_pack sequence_slice_unpack
ops.statistics_ops: Histograms.
    facade.tensors: fixed_width_bins histogram histogram_normalize histogram_update
ops.summary_ops: Reports in TensorBoard's summaries.
    refused, run the program by `ipuperf run --report DIR`: get_ipu_reports ipu_compile_summary
ops.within_replica_ops: Collectives between the IPUs of a replica.
    facade.shards: all_gather all_reduce reduce_scatter
optimizers: Optimizers around those of TensorFlow 1.
    pipelining.accumulation: CrossReplicaGradientAccumulationOptimizer CrossReplicaGradientAccumulationOptimizerV2
        CrossReplicaOptimizer GradientAccumulationOptimizer GradientAccumulationOptimizerV2
        GradientAccumulationReductionMethod IPUOptimizer IpuOptimizer MapGradientOptimizer ShardedOptimizer
    refused, scale the loss and the gradients by a constant: AutomaticLossScalingOptimizer
optimizers.automatic_loss_scaling_optimizer: Loss scales that follow the gradients.
    python.ipu.optimizers: AutomaticLossScalingOptimizer
optimizers.cross_replica_optimizer: Gradients over replicas.
    pipelining.accumulation: CrossReplicaOptimizer
optimizers.gradient_accumulation_optimizer: Gradients over micro-batches.
    pipelining.accumulation: CrossReplicaGradientAccumulationOptimizer CrossReplicaGradientAccumulationOptimizerV2
        GradientAccumulationOptimizer GradientAccumulationOptimizerV2
optimizers.ipu_optimizer: Their base.
    pipelining.accumulation: IPUOptimizer IpuOptimizer
optimizers.map_gradient_optimizer: Gradients changed.
    pipelining.accumulation: MapGradientOptimizer
optimizers.sharded_optimizer: Gradients on the shards of their variables.
    pipelining.accumulation: ShardedOptimizer
scopes: Devices and shards of the ops of a block.
    facade.placing: frontend_attribute ipu_jit_scope ipu_scope ipu_shard outside_compilation_scope
        partials_type stochastic_rounding
serving: Models for serving.
    facade.serving: export_keras export_pipeline export_single_step
sharding: Shards of ops.
    facade.placing: dependencies get_shard get_shard_from_colocation has_attr propagate_sharding set_shard
utils: The configuration under its older address, and small helpers.
    config: configure_ipu_system get_ipu_config IPUConfig reset_ipu_configuration
    config_options: DeviceConnectionType ExecutionProfileType MergeRemoteBuffersBehaviour SchedulingAlgorithm
        SelectionOrder StochasticRoundingBehaviour
    facade.machine: get_num_of_ipus_in_device move_variable_initialization_to_cpu reset_ipu_seed
        running_on_ipu_model
    refused, older than IPUConfig; use ipu.config.IPUConfig: auto_select_ipus create_ipu_config select_ipus
        set_ipu_connection_type
    refused, use tf.train.Checkpoint, tf.compat.v1.train.Saver or tf.data's Dataset.save: export_dataset_to_file
        export_inputs_to_file
    refused, run the program by `ipuperf run --report DIR`: extract_all_events extract_all_strings_from_event_trace
        extract_compile_reports extract_execute_reports
    removed, the fields of ipu.config.IPUConfig: set_*_options
vertex_edsl: Vertices in Python.
    refused, write the formula with TensorFlow's operations (custom_ops.codelet_expression_op calls it):
        PlaceholderVertexExpr
""")
"""By name; modules below ``ops`` and ``optimizers`` are attributes of the package too."""
