// Package stored reads the messages of a stream without a consumer: whoever may create consumers may let the server
// write to any subject of the account.
//
// A [Reader] reads pages by direct gets, which any replica of the stream answers. A replica may lag behind, so reading
// ends only when the stream's leader has nothing more.
//
// The server answers a direct get with the stored headers, followed by its own. The publisher chooses the stored ones:
// it can repeat those of the server, or end the header before them. So a Reader uses the last value of each, and asks
// the leader for a message whose header has bytes that the client does not show. The leader's response has subject,
// sequence and header apart from each other.
package stored
