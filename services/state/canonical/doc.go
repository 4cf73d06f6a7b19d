// Package canonical recognizes JSON that is spelled exactly as encoding/json spells a Go struct, in one pass and without decoding it.
//
// A [Shape] is made from a struct type and rules for some of its values. What [Shape.Read] accepts has been shown to be, byte for byte, what
// json.Marshal makes of some value of the type that keeps the rules: so reading it into the type and writing it again changes nothing, it
// holds no field that the type does not know, and no text that is not valid. The other way round nothing is promised: it may
// refuse what Marshal does write, such as rare escapes in texts and times that are not in UTC; who is refused decodes in the usual way.
package canonical
