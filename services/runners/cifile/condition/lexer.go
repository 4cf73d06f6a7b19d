package condition

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

type kind int

const (
	endToken kind = iota
	variableToken
	textToken
	patternToken
	nullToken
	compareToken // == != =~ !~
	andToken
	orToken
	openToken
	closeToken
)

type token struct {
	kind   kind
	text   string // name of a variable, content of a string, symbol of an operator
	offset int    // in bytes

	// Of a pattern.
	regex        *regexp.Regexp
	instructions int
}

var symbols = []struct {
	text string
	kind kind
}{
	{"==", compareToken},
	{"!=", compareToken},
	{"=~", compareToken},
	{"!~", compareToken},
	{"&&", andToken},
	{"||", orToken},
	{"(", openToken},
	{")", closeToken},
}

// lex divides the source into tokens. The last one is endToken.
func lex(source string) ([]token, error) {
	var out []token
	for at := 0; ; {
		at += len(source[at:]) - len(strings.TrimLeft(source[at:], " \t\r\n"))
		if at == len(source) {
			return append(out, token{kind: endToken, offset: at}), nil
		}
		if len(out) == maxTokens {
			return nil, &SyntaxError{Offset: at, Message: fmt.Sprintf("more than %d terms and operators", maxTokens)}
		}
		t, size, err := next(source[at:])
		if err != nil {
			return nil, &SyntaxError{Offset: at, Message: err.Error()}
		}
		t.offset = at
		out = append(out, t)
		at += size
	}
}

// next reads the token at the start of source, which is not empty.
func next(source string) (token, int, error) {
	for _, s := range symbols {
		if strings.HasPrefix(source, s.text) {
			return token{kind: s.kind, text: s.text}, len(s.text), nil
		}
	}
	switch c := source[0]; {
	case c == '$':
		return variable(source)
	case c == '"' || c == '\'':
		end := strings.IndexByte(source[1:], c)
		if end < 0 {
			return token{}, 0, fmt.Errorf("the string has no closing %c", c)
		}
		return token{kind: textToken, text: source[1 : 1+end]}, end + 2, nil
	case c == '/':
		size := patternSize(source)
		if size == 0 {
			return token{}, 0, errors.New("the pattern has no closing /")
		}
		regex, instructions, err := compile(source[:size])
		return token{kind: patternToken, text: source[:size], regex: regex, instructions: instructions}, size, err
	case strings.HasPrefix(source, "null") && word(source) == len("null"):
		return token{kind: nullToken, text: "null"}, len("null"), nil
	case word(source) > 0:
		return token{}, 0, fmt.Errorf("%q: write $%[1]s for a variable or \"%[1]s\" for a text", source[:word(source)])
	default:
		return token{}, 0, fmt.Errorf("unexpected %q", firstRune(source))
	}
}

func variable(source string) (token, int, error) {
	rest, braces := strings.CutPrefix(source[1:], "{")
	size := word(rest)
	if size == 0 || '0' <= rest[0] && rest[0] <= '9' {
		return token{}, 0, errors.New("$ needs the name of a variable, such as $CI_COMMIT_BRANCH")
	}
	t := token{kind: variableToken, text: rest[:size]}
	if !braces {
		return t, 1 + size, nil
	}
	if !strings.HasPrefix(rest[size:], "}") {
		return token{}, 0, fmt.Errorf("${%s has no closing }", t.text)
	}
	return t, size + len("${}"), nil
}

// word returns the length of the name at the start of source.
func word(source string) int {
	for i := range len(source) {
		c := source[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return i
		}
	}
	return len(source)
}

func firstRune(source string) string {
	for _, r := range source {
		return string(r)
	}
	return ""
}

// patternSize returns the length of the /pattern/flags at the start of source; 0 if it does not end.
func patternSize(source string) int {
	for i := 1; i < len(source); i++ {
		switch source[i] {
		case '\\':
			i++
		case '/':
			for i++; i < len(source) && strings.IndexByte(patternFlags, source[i]) >= 0; {
				i++
			}
			return i
		}
	}
	return 0
}

const patternFlags = "imsU"

// compile compiles a whole /pattern/flags. It returns the number of its instructions too, which a match executes at
// most once for each character of a text.
func compile(source string) (*regexp.Regexp, int, error) {
	end := strings.LastIndexByte(source, '/')
	pattern, flags := source[1:end], source[end+1:]
	if len(pattern) > maxPattern {
		return nil, 0, fmt.Errorf("a pattern has at most %d bytes", maxPattern)
	}
	if flags != "" {
		pattern = "(?" + flags + ")" + pattern
	}
	size, err := instructions(pattern)
	if err != nil {
		return nil, 0, fmt.Errorf("%s is not an RE2 pattern: %w", source, err)
	}
	if size > maxInstructions {
		return nil, 0, fmt.Errorf("%s is too large: use smaller repetitions", source)
	}
	regex, err := regexp.Compile(pattern)
	if err != nil {
		return nil, 0, fmt.Errorf("%s is not an RE2 pattern: %w", source, err)
	}
	return regex, size, nil
}

func instructions(pattern string) (int, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller wraps it
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller wraps it
	}
	return len(program.Inst), nil
}
