"""The modules of ``tensorflow.python.ipu``: where each name stands, and which names are refused."""

from __future__ import annotations

from ...surface import Names

_NO_EXECUTABLES = "there are no Poplar executables to export"
_OLD = "older than IPUConfig; use ipu.config.IPUConfig"
_ONE_PROCESS = "there is one process; replicas are inside of the program (IPUConfig.auto_select_ipus)"
_REPORTS = "run the program by `ipuperf run --report DIR`"
_ENUMERATIONS = (
    "DeviceConnectionType ExecutionProfileType MergeRemoteBuffersBehaviour SchedulingAlgorithm SelectionOrder "
    "StochasticRoundingBehaviour"
)
_ACCUMULATION = (
    "CrossReplicaGradientAccumulationOptimizer CrossReplicaGradientAccumulationOptimizerV2 "
    "GradientAccumulationOptimizer GradientAccumulationOptimizerV2"
)
_CONFIGURING = "IPUConfig configure_ipu_system get_ipu_config reset_ipu_configuration"
_PIPELINES = Names(
    "Pipelines of several IPUs.",
    {
        "facade.pipelines": "pipeline recomputation_checkpoint",
        "pipelining.model": "OptimizerFunctionOutput PipelineStageOptions",
        "pipelining.arguments": "PipelineSchedule RecomputationMode",
    },
)
_RECURRENT = "PopnnAUGRU PopnnDynamicGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM"

MODULES = {
    "autoshard": Names("Shards chosen for a graph.", {"facade.placing": "automatic_sharding ipu_autoshard"}),
    "config": Names("The configuration of IPUs.", {"config": _CONFIGURING, "config_options": _ENUMERATIONS}),
    "dataset_benchmark": Names(
        "How fast the host produces data.", {"facade.datasets": "dataset_benchmark infeed_benchmark"}
    ),
    "dataset_extractor": Names(
        "Data sets as files.",
        refused={
            "write the data set with tf.data (Dataset.save)": "dataset_extractor",
            "use tf.train.Checkpoint or tf.compat.v1.train.Saver": "export_variables",
        },
    ),
    "distributed": Names(
        "Programs of several instances, of which there is one here.",
        {"facade.distributed": "allgather allreduce broadcast"},
    ),
    "distributed.host_collective_ops": Names(
        "Collectives between processes.", {"facade.distributed": "allgather allreduce broadcast"}
    ),
    "distributed.popdist_strategy": Names("Programs of ``poprun``.", {"facade.strategies": "PopDistStrategy"}),
    "gradient_accumulation": Names(
        "How gradients are combined.", {"pipelining.reduction": "GradientAccumulationReductionMethod"}
    ),
    "horovod": Names(
        "Horovod for TensorFlow, of one process.",
        {
            "facade.horovod": "Adasum Average Sum allgather allreduce broadcast init is_homogeneous local_rank "
            "local_size rank shutdown size"
        },
    ),
    "horovod.popdist_strategy": Names("Programs of ``poprun``.", {"facade.strategies": "PopDistStrategy"}),
    "ipu_compiler": Names("One program from a function.", {"facade.compiling": "compile"}),
    "ipu_estimator": Names(
        "Estimators, which TensorFlow has no more since 2.16.", {"keras.refused": "IPUEstimator IPUEstimatorSpec"}
    ),
    "ipu_infeed_queue": Names("Data for programs.", {"programs.infeed": "IPUInfeedQueue IPUIterator IPUOwnedIterator"}),
    "ipu_multi_worker_strategy": Names(
        "Several hosts.", refused={_ONE_PROCESS: "IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1"}
    ),
    "ipu_outfeed_queue": Names("Results of programs.", {"programs.outfeed": "IPUOutfeedMode IPUOutfeedQueue"}),
    "ipu_pipeline_estimator": Names(
        "Estimators, which TensorFlow has no more since 2.16.",
        {"keras.refused": "IPUPipelineEstimator IPUPipelineEstimatorSpec"},
    ),
    "ipu_run_config": Names("How an estimator runs.", {"keras.refused": "IPURunConfig RunConfig"}),
    "ipu_session_run_hooks": Names(
        "Hooks of estimators.",
        refused={
            "TensorFlow has no estimators any more; fetch values through an IPUOutfeedQueue": "IPULoggingTensorHook"
        },
    ),
    "ipu_strategy": Names(
        "Where TensorFlow 2 programs run.", {"facade.strategies": "IPUExtendedV1 IPUStrategy IPUStrategyV1"}
    ),
    "loops": Names("Loops on the device.", {"facade.compiling": "repeat while_loop"}),
    "ops": Names("Operations of the IPU."),
    "ops.all_to_all_op": Names("Exchanges between replicas.", {"facade.replicas": "all_gather all_to_all"}),
    "ops.application_compile_op": Names(
        "Programs compiled ahead.",
        refused={
            "a program is compiled when it runs; there are no executables to "
            "save": "experimental_application_compile_op"
        },
    ),
    "ops.control_flow_ops": Names("Order of operations.", {"facade.tensors": "barrier"}),
    "ops.cross_replica_ops": Names(
        "Reductions over the replicas of a program.",
        {"facade.replicas": "assume_equal_across_replicas cross_replica_mean cross_replica_sum"},
    ),
    "ops.custom_ops": Names(
        "Operations of the user's own.",
        {"facade.tensors": "codelet_expression_op"},
        {
            "an operation of C++ cannot run here; write it with TensorFlow's operations, or as an op of ipuperf "
            "(docs/adding-an-op.md)": "cpu_user_op precompiled_user_op"
        },
    ),
    "ops.embedded_runtime": Names(
        "Programs run without TensorFlow's graph.",
        refused={
            "there are no Poplar executables; run the program by a session or IPUStrategy.run": "RuntimeContext "
            "embedded_runtime_call embedded_runtime_start"
        },
    ),
    "ops.embedding_ops": Names(
        "Lookups in tables.",
        {
            "facade.embeddings": "HostEmbedding HostEmbeddingOptimizerSpec HostEmbeddingSGDGAOptimizerSpec "
            "HostEmbeddingScope create_host_embedding embedding_lookup"
        },
    ),
    "ops.f8_ops": Names(
        "8-bit floats.",
        refused={
            "TensorFlow has no such type here; PopXL programs have 8-bit floats": "convert_from_f8 convert_to_f8 "
            "f8_conv_2d f8_conv_3d f8_matmul"
        },
    ),
    "ops.functional_ops": Names("Functions whose calls share code.", {"facade.tensors": "outlined_function"}),
    "ops.image_ops": Names("Images.", {"facade.networks": "normalise_image"}),
    "ops.internal_ops": Names(
        "What looks into a program, and hints to its compiler.",
        {"facade.tensors": "print_tensor remap remap_deduce"},
        {"carry a counter through the loop (inputs of loops.repeat)": "get_current_iteration_counter"},
    ),
    "ops.math_ops": Names(
        "Sums of segments, and products that are made in parts.", {"facade.networks": "segment_sum serialized_matmul"}
    ),
    "ops.nn_ops": Names(
        "Functions of neural networks.",
        {
            "facade.networks": "ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss ctc_loss_v2 "
            "ctc_loss_with_log_probs ctc_loss_with_logits gelu hard_sigmoid multi_conv softmax swish"
        },
        {
            "candidates are sampled by an op that the IPU does not have; compute the full softmax": "nce_loss "
            "sampled_softmax_loss"
        },
    ),
    "ops.normalization_ops": Names("Normalisation.", {"facade.norms": "group_norm instance_norm layer_norm"}),
    "ops.pipelining_ops": _PIPELINES,
    "ops.rand_ops": Names("Random numbers.", {"facade.networks": "dropout"}),
    "ops.reduce_scatter_op": Names(
        "Reductions over replicas of which each one gets a part.", {"facade.replicas": "KINDS reduce_scatter"}
    ),
    "ops.replication_ops": Names("Which replica this is.", {"facade.replicas": "replication_index"}),
    "ops.rnn_ops": Names("Recurrent layers of PopNN.", {"facade.popnn_layers": _RECURRENT}),
    "ops.slicing_ops": Names(
        "Slices of sequences.", {"facade.tensors": "sequence_slice sequence_slice_pack sequence_slice_unpack"}
    ),
    "ops.statistics_ops": Names(
        "Histograms.", {"facade.tensors": "fixed_width_bins histogram histogram_normalize histogram_update"}
    ),
    "ops.summary_ops": Names(
        "Reports in TensorBoard's summaries.", refused={_REPORTS: "get_ipu_reports ipu_compile_summary"}
    ),
    "ops.within_replica_ops": Names(
        "Collectives between the IPUs of a replica.", {"facade.shards": "all_gather all_reduce reduce_scatter"}
    ),
    "optimizers": Names(
        "Optimizers around those of TensorFlow 1.",
        {
            "pipelining.accumulation": f"{_ACCUMULATION} CrossReplicaOptimizer IPUOptimizer IpuOptimizer "
            "MapGradientOptimizer ShardedOptimizer",
            "pipelining.reduction": "GradientAccumulationReductionMethod",
        },
        {"scale the loss and the gradients by a constant": "AutomaticLossScalingOptimizer"},
    ),
    "optimizers.automatic_loss_scaling_optimizer": Names(
        "Loss scales that follow the gradients.", {"python.ipu.optimizers": "AutomaticLossScalingOptimizer"}
    ),
    "optimizers.cross_replica_optimizer": Names(
        "Gradients over replicas.", {"pipelining.accumulation": "CrossReplicaOptimizer"}
    ),
    "optimizers.gradient_accumulation_optimizer": Names(
        "Gradients over micro-batches.", {"pipelining.accumulation": _ACCUMULATION}
    ),
    "optimizers.ipu_optimizer": Names("Their base.", {"pipelining.accumulation": "IPUOptimizer IpuOptimizer"}),
    "optimizers.map_gradient_optimizer": Names(
        "Gradients changed.", {"pipelining.accumulation": "MapGradientOptimizer"}
    ),
    "optimizers.sharded_optimizer": Names(
        "Gradients on the shards of their variables.", {"pipelining.accumulation": "ShardedOptimizer"}
    ),
    "pipelining_ops": _PIPELINES,
    "scopes": Names(
        "Devices and shards of the ops of a block.",
        {
            "facade.placing": "frontend_attribute ipu_jit_scope ipu_scope ipu_shard ordinal_of "
            "outside_compilation_scope partials_type stochastic_rounding"
        },
    ),
    "serving": Names(
        "Models for serving.", refused={_NO_EXECUTABLES: "export_keras export_pipeline export_single_step"}
    ),
    "sharding": Names(
        "Shards of ops.",
        {"facade.placing": "dependencies get_shard get_shard_from_colocation has_attr propagate_sharding set_shard"},
    ),
    "utils": Names(
        "The configuration under its older address, and small helpers.",
        {
            "config": _CONFIGURING,
            "config_options": _ENUMERATIONS,
            "facade.machine": "get_num_of_ipus_in_device move_variable_initialization_to_cpu reset_ipu_seed "
            "running_on_ipu_model",
        },
        {
            _OLD: "auto_select_ipus create_ipu_config select_ipus set_ipu_connection_type",
            "use tf.train.Checkpoint, tf.compat.v1.train.Saver or tf.data's Dataset.save": "export_dataset_to_file "
            "export_inputs_to_file",
            _REPORTS: "extract_all_events extract_all_strings_from_event_trace extract_compile_reports "
            "extract_execute_reports",
        },
        {"_options": "the fields of ipu.config.IPUConfig"},
    ),
    "vertex_edsl": Names(
        "Vertices in Python.",
        refused={
            "write the formula with TensorFlow's operations (custom_ops.codelet_expression_op calls "
            "it)": "PlaceholderVertexExpr"
        },
    ),
}
"""By name below ``tensorflow.python.ipu``; those below ``ops`` and ``optimizers`` are its attributes too."""
