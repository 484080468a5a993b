//! The structure of graphs, and copies of them.
#![forbid(unsafe_code)]

use super::State;
use super::capture::{Graph, Node, NodeKind};
use crate::error::{Answer, Code};

impl Graph {
    /// Returns the nodes that come after no other.
    pub(crate) fn roots(&self) -> Vec<u64> {
        let roots = self.nodes.iter().filter(|node| node.after.is_empty());
        roots.map(|node| node.handle).collect()
    }

    /// Returns the edges as pairs: a node, and a node that comes after it.
    pub(crate) fn edges(&self) -> Vec<(u64, u64)> {
        let before = |node: &Node| {
            let to = node.handle;
            let from = node.after.iter().map(|index| self.nodes[*index].handle);
            from.map(|from| (from, to)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(before).collect()
    }
}

impl State {
    /// Returns the graph of a node.
    fn graph_of(&self, node: u64) -> Answer<&Graph> {
        let holds = |graph: &&Graph| graph.nodes.iter().any(|found| found.handle == node);
        self.graphs.values().find(holds).ok_or(Code::INVALID_VALUE)
    }

    /// Returns the nodes that a node comes after.
    pub(crate) fn nodes_before(&self, node: u64) -> Answer<Vec<u64>> {
        let edges = self.graph_of(node)?.edges().into_iter();
        Ok(edges.filter(|edge| edge.1 == node).map(|edge| edge.0).collect())
    }

    /// Returns the nodes that come after a node.
    pub(crate) fn nodes_after(&self, node: u64) -> Answer<Vec<u64>> {
        let edges = self.graph_of(node)?.edges().into_iter();
        Ok(edges.filter(|edge| edge.0 == node).map(|edge| edge.1).collect())
    }

    /// Removes a node from its graph.
    pub(crate) fn destroy_node(&mut self, node: u64) -> Answer {
        let holds = |graph: &&mut Graph| graph.nodes.iter().any(|found| found.handle == node);
        let graph = self.graphs.values_mut().find(holds).ok_or(Code::INVALID_VALUE)?;
        let index = graph.nodes.iter().position(|found| found.handle == node);
        let index = index.ok_or(Code::INVALID_VALUE)?;
        Code::NOT_SUPPORTED.when(matches!(
            graph.nodes[index].kind,
            NodeKind::Allocate | NodeKind::Free
        ))?;
        graph.nodes.remove(index);
        for node in &mut graph.nodes {
            node.after.retain(|before| *before != index);
            for before in node.after.iter_mut().filter(|before| **before > index) {
                *before -= 1;
            }
        }
        Ok(())
    }

    /// Copies a graph. A graph that allocates memory cannot be copied, because its memory may be in use only once.
    pub(crate) fn clone_graph(&mut self, handle: u64) -> Answer<u64> {
        let graph = self.graph(handle)?;
        Code::NOT_SUPPORTED.when(!graph.memory.is_empty())?;
        let mut nodes = graph.nodes.clone();
        for node in &mut nodes {
            node.handle = self.new_handle();
        }
        let copy = self.create_graph();
        if let Some(graph) = self.graphs.get_mut(&copy) {
            graph.nodes = nodes;
        }
        Ok(copy)
    }
}
