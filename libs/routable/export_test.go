package routable

// Encode is [New] with given random bytes.
func Encode(prefix Prefix, random [16]byte, payload Payload) (string, error) {
	return encode(prefix, random, payload)
}
