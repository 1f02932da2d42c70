//! `attune cluster`.

use attune_api_types::{Cluster, ExecutorView, PartitionView, WorkerView};
use clap::Args;

use super::http::Http;
use super::render::{Column, millis, or_dash, table};
use super::{Connect, EXIT_CODES, Failure, Output};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ClusterArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
}

pub(super) async fn execute(http: &Http, arguments: ClusterArguments) -> Result<Output, Failure> {
    let cluster: Cluster = http.get("/cluster", &[]).await?;
    Ok(if arguments.connect.json {
        Output::json(&cluster)
    } else {
        Output::text(tables(&cluster))
    })
}

fn tables(cluster: &Cluster) -> String {
    let mut tables = [
        executors(&cluster.executors),
        partitions(&cluster.partitions),
        workers(&cluster.workers),
    ]
    .join("\n\n");
    if cluster.workers_left_out > 0 {
        let more = cluster.workers_left_out;
        tables.push_str(&format!("\n{more} more workers are not shown"));
    }
    tables
}

fn executors(executors: &[ExecutorView]) -> String {
    let rows = executors.iter().map(|executor| {
        vec![
            executor.name.clone(),
            executor.partitions.to_string(),
            millis(executor.lease_remaining_ms),
            if executor.cut_off { "cut off" } else { "ok" }.to_owned(),
            executor.id.to_string(),
        ]
    });
    let columns = [
        Column::Words("executor"),
        Column::Figures("partitions"),
        Column::Figures("lease"),
        Column::Words("broker"),
        Column::Words("id"),
    ];
    table(&columns, rows.collect())
}

fn partitions(partitions: &[PartitionView]) -> String {
    let rows = partitions.iter().map(|partition| {
        let owned = partition
            .owner
            .map(|_| millis(partition.lease_remaining_ms));
        vec![
            partition.partition.to_string(),
            or_dash(partition.owner_name.clone()),
            partition.epoch.to_string(),
            or_dash(owned),
        ]
    });
    let columns = [
        Column::Figures("partition"),
        Column::Words("owner"),
        Column::Figures("epoch"),
        Column::Figures("lease"),
    ];
    table(&columns, rows.collect())
}

fn workers(workers: &[WorkerView]) -> String {
    let rows = workers.iter().map(|worker| {
        vec![
            worker.name.clone(),
            worker.pool.clone(),
            worker.slots.to_string(),
            if worker.alive {
                millis(worker.lease_remaining_ms)
            } else {
                "gone".to_owned()
            },
            or_dash(worker.seen_ago_ms.map(millis)),
            worker.id.to_string(),
        ]
    });
    let columns = [
        Column::Words("worker"),
        Column::Words("pool"),
        Column::Figures("slots"),
        Column::Figures("lease"),
        Column::Figures("seen ago"),
        Column::Words("id"),
    ];
    table(&columns, rows.collect())
}
