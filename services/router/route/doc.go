// Package route decides which cell gets a request. It is pure: it reads no clock and no network.
//
// [FromHeader], [FromQuery] and [FromBody] find the token of a request, [Table.Decide] the cell:
//
//   - A routable token goes to the cell of its organization in the map, else to the cell that it names. Its checksum
//     is verified; its content is a claim, which the cell checks.
//   - The token of a job goes to the cell that signed it, also if it has expired, and also after its organization was
//     moved: a running job ends where it runs.
//   - Any other token, and none, goes to the legacy cell.
//
// GitLab runners stop for an hour after three refusals. So a request is refused only if that is certain: the map is
// current, and it has no place for the token, or a cell was removed. In doubt, the client shall try again later.
package route
