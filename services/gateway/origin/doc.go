// Package origin decides whether a request to a workspace comes from a page that may make it. It is pure.
//
// All workspaces are names of one zone, so browsers treat them as one site: SameSite cookies are sent when the page of
// one workspace makes a request to another. What tells them apart is the origin, which browsers add to requests and
// scripts cannot change: the headers Origin and Sec-Fetch-Site. Sources: RFC 6454;
// https://www.w3.org/TR/fetch-metadata; https://fetch.spec.whatwg.org/#origin-header.
package origin
