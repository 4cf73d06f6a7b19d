// Package wire has the messages of the HTTP contract between GitLab runners and this service: requests, answers,
// headers and ranges. It is pure.
//
// Requests come from anyone who can connect. So every request is bounded before it is used: the body, the number and
// the length of its values. Control characters are refused. Unknown fields are ignored, since each version of the
// runner adds some. An error is a fault of code invalid_argument or payload_too_large and names the field, never its
// value: values may be secrets.
package wire
