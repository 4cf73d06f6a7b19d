// Package http1 reads the heads of HTTP/1.1 messages that are plain: those that mean the same to everybody who reads them, and ask for nothing but to be passed on.
//
// It is not a parser of HTTP. What it does not know at once it does not judge: the reader of net/http has it then, with all that HTTP has besides, and refuses what is to be refused. So the
// rule is that less is plain than could be: a request that reads and has no body, an answer whose length is said; no line that is folded, nothing twice that is there once, no byte that
// two readers could take for two things (RFC 9112, section 11.2), no field that is for the connection rather than for who is asked, but for what keeps it open.
//
// What is plain here, net/http reads the same way: a fuzz test compares them.
package http1
