package podstate

import (
	"strings"
	"unicode/utf8"
)

// maxDetail is the maximum length of a quoted cluster message, in bytes.
const maxDetail = 300

// Name returns the name, or "(unnamed)" if it is empty.
func Name(name string) string {
	if name == "" {
		return "(unnamed)"
	}
	return Detail(name)
}

// Detail returns a cluster message as one line of at most maxDetail bytes.
func Detail(message string) string {
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "\uFFFD")), " ")
	if message == "" {
		return "the cluster gave no reason"
	}
	if len(message) <= maxDetail {
		return message
	}
	end := maxDetail
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
