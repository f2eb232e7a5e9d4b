//! Compiles the proto files without a system `protoc`.

/// Every proto file of the process; all in the folder `proto` of the workspace.
const FILES: &[&str] = &["distro.proto", "nacos_grpc_service.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = "../../proto";
    let mut paths = Vec::new();
    for file in FILES {
        let path = format!("{folder}/{file}");
        println!("cargo:rerun-if-changed={path}");
        paths.push(path);
    }
    let descriptors = protox::compile(paths, [folder])?;
    // `Bytes` for bodies: no copy between the receive buffer and the decoder of the body.
    tonic_prost_build::configure()
        .bytes(".")
        .extern_path(".google.protobuf.Any", "crate::grpc::any::Any")
        .compile_fds(descriptors)?;
    Ok(())
}
