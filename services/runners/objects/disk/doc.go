// Package disk keeps objects in a folder. Several processes, also on several machines, may share the folder.
//
// The object a/b is the file <folder>/12/34/a~b, where 1234 begins the SHA-256 of the key. Put writes a temporary file
// beside it, whose name begins with ".put-", syncs it, renames it and syncs the folder. So a crash leaves temporary
// files only. The file system must rename atomically, as all local ones and NFS do.
//
// The folder itself is not created. A missing one is an error, as it may be a volume that is not mounted yet.
package disk
