// Package s3d runs MinIO, a real server of the S3 protocol, which tests do not build: [Variable] names the program.
// `make minio` builds the version that tools/s3server pins. It takes five minutes of processor time, so the tests of
// every change use package s3fake instead. No program of Lockstep is linked with MinIO: its license is the AGPL.
package s3d
