"""What `torch.jit.script` compiles of an image model: two traced graphs, one for training and one for inference.

The compiler cannot read a loop over modules of passes, so a trace stands for it. A trace is of one mode: dropped paths
and the permutations of training would remain in it after `eval()`.
"""

from dataclasses import fields

from torch import Tensor, fx, nn

from timm_plugin.elastic import ElasticConfig


def scriptable(model: nn.Module, config: ElasticConfig) -> fx.GraphModule:
    """A module with the weights of a model, whose forward pass follows its mode and can be compiled.

    Args:
        model: any that torch.fx traces.
        config: its depth in training. Where it changes from update to update, only inference is traced.

    Raises:
        RuntimeError: if the model is in training and its depth there changes.
    """
    changing = [field.name for field in fields(ElasticConfig) if getattr(config, field.name) != field.default]
    if changing and model.training:
        option = f"{changing[0]}={getattr(config, changing[0])!r}"
        rule = "a graph runs the same passes in every update; call eval() before torch.jit.script"
        raise RuntimeError(f"{option}: {rule}")
    graphs = [_traced(model, training) for training in ((False,) if changing else (False, True))]
    both = fx.Graph()
    x = both.placeholder("x")
    both.output([both.graph_copy(graph, {next(iter(graph.nodes)): x}) for graph in graphs])
    module = fx.GraphModule(model, both)  # holds what either graph uses
    kind = type(module)  # of this module alone
    kind.forward = _by_mode
    for name, graph in (("_infer", graphs[0]), ("_learn", graphs[-1])):
        method = type(fx.GraphModule(model, graph)).forward
        method.__name__ = name  # by which the compiler knows it
        setattr(kind, name, method)
    return module


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # buffers stay buffers, and what is computed from them is no constant of the model


def _traced(model: nn.Module, training: bool) -> fx.Graph:
    """The graph of a mode; the mode of every module is as before."""
    modes = {module: module.training for module in model.modules()}
    try:
        if training != model.training:
            model.train(training)
        graph = _Tracer().trace(model)
    finally:
        for module, mode in modes.items():
            module.training = mode
    graph.output_node().type = None  # of `forward`, which also has other results than these
    return graph


def _by_mode(self, x: Tensor) -> Tensor:
    return self._learn(x) if self.training else self._infer(x)
