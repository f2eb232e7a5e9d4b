//! Compiles the clients' wire format for the harness's own client.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../proto/nacos_grpc_service.proto");
    let files = protox::compile(["../proto/nacos_grpc_service.proto"], ["../proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
