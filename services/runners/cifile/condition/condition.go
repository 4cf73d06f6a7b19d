package condition

import (
	"fmt"
	"regexp"
	"strings"
)

// Limits of one expression.
const (
	MaxBytes = 4096
	MaxDepth = 32 // of parentheses

	maxTokens       = 512
	maxPattern      = 512 // bytes
	maxInstructions = 1000
)

// SyntaxError reports where an expression is wrong.
type SyntaxError struct {
	Offset  int // in bytes from the start of the expression
	Message string
}

func (e *SyntaxError) Error() string { return e.Message }

// Condition is a parsed expression. It is immutable and safe for concurrent use.
type Condition struct {
	source string
	root   node
}

// Parse parses source. Every error is a *[SyntaxError].
func Parse(source string) (*Condition, error) {
	if len(source) > MaxBytes {
		return nil, &SyntaxError{Message: fmt.Sprintf("the expression has more than %d bytes", MaxBytes)}
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	root, err := p.or(0)
	if err != nil {
		return nil, err
	}
	if t := p.tokens[0]; t.kind != endToken {
		return nil, &SyntaxError{Offset: t.offset, Message: fmt.Sprintf("unexpected %s after the expression", t)}
	}
	return &Condition{source: source, root: root}, nil
}

// String returns the source.
func (c *Condition) String() string { return c.source }

// Evaluate returns the result for the variables. A variable that is no key is undefined.
func (c *Condition) Evaluate(variables map[string]string) bool { return c.root.evaluate(variables) }

// Cost returns the most steps that [Condition.Evaluate] takes for the variables: for each match the instructions of its
// pattern times the characters of its text. 100 million steps take about a second.
func (c *Condition) Cost(variables map[string]string) int64 { return c.root.cost(variables) }

// node is a part of a condition that is true or false.
type node interface {
	evaluate(variables map[string]string) bool
	cost(variables map[string]string) int64
}

type or struct{ left, right node }

func (n or) evaluate(v map[string]string) bool { return n.left.evaluate(v) || n.right.evaluate(v) }
func (n or) cost(v map[string]string) int64    { return n.left.cost(v) + n.right.cost(v) }

type and struct{ left, right node }

func (n and) evaluate(v map[string]string) bool { return n.left.evaluate(v) && n.right.evaluate(v) }
func (n and) cost(v map[string]string) int64    { return n.left.cost(v) + n.right.cost(v) }

// operand is a variable, a text, a pattern or null. Alone it is true if it is defined and not empty.
type operand struct{ token }

func (n operand) evaluate(v map[string]string) bool {
	text, defined := n.value(v)
	return defined && text != ""
}

func (operand) cost(map[string]string) int64 { return 1 }

func (n operand) value(v map[string]string) (text string, defined bool) {
	switch n.kind {
	case variableToken:
		text, defined = v[n.text]
		return text, defined
	case nullToken:
		return "", false
	default:
		return n.text, true
	}
}

// pattern returns the regular expression of the operand, nil if it has none.
func (n operand) pattern(v map[string]string) *regexp.Regexp {
	if n.kind == patternToken {
		return n.regex
	}
	text, defined := n.value(v)
	if !defined || !strings.HasPrefix(text, "/") || len(text) > maxPattern || patternSize(text) != len(text) {
		return nil
	}
	regex, _, err := compile(text)
	if err != nil {
		return nil
	}
	return regex
}

type equal struct {
	left, right operand
	negated     bool
}

func (n equal) evaluate(v map[string]string) bool {
	left, leftDefined := n.left.value(v)
	right, rightDefined := n.right.value(v)
	return (leftDefined == rightDefined && left == right) != n.negated
}

func (equal) cost(map[string]string) int64 { return 1 }

type match struct {
	left, right operand
	negated     bool
}

func (n match) evaluate(v map[string]string) bool {
	text, _ := n.left.value(v)
	regex := n.right.pattern(v)
	return (regex != nil && regex.MatchString(text)) != n.negated
}

func (n match) cost(v map[string]string) int64 {
	text, _ := n.left.value(v)
	instructions := maxInstructions
	if n.right.kind == patternToken {
		instructions = n.right.instructions
	}
	return int64(instructions) * int64(len(text)+1)
}
