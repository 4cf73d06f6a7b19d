// Package s3 keeps objects in a bucket of a store that speaks the S3 protocol.
//
// Put holds one part of 8 MiB in memory. Content that fits is sent as one request, longer content as a multipart
// upload, which becomes an object when it is completed. An upload that fails is aborted. One that a crash leaves is
// invisible, and Sweep aborts it. The store compares each part with the SHA-256 that its request is signed with.
//
// The bucket must exist, and should not keep versions: Delete would hide objects and free no space. The key needs the
// rights to get, put, delete and list objects, and to list and abort multipart uploads.
package s3
