// Package asyncapi renders the AsyncAPI 3.0 document of all streams that can be read.
//
// A channel is one subject of one stream with its event types. The operations are those of a
// reader. The document is generated from the topology and the catalog. Equal input gives equal
// bytes.
package asyncapi
