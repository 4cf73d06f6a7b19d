package environment

import (
	"net/url"
	"strings"
)

// maxURL is the maximum length of a URL in bytes.
const maxURL = 2048

// urlPunctuation are the punctuation characters of a URL, without *, which formatted text interprets.
const urlPunctuation = "-._~:/?#[]@!$&'()+,;=%"

// WebURL returns the text if people can be sent to it: an absolute http or https URL of at most 2048 ASCII characters,
// without credentials. Otherwise it returns "". Pods and their authors choose the text, so it is not trusted.
func WebURL(text string) string {
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && strings.IndexByte(urlPunctuation, c) < 0 {
			return ""
		}
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || u.Hostname() == "" || u.User != nil {
		return ""
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return text
}
