package condition

import "fmt"

// parser holds the tokens that are not yet read. The last one is endToken, which stays.
type parser struct{ tokens []token }

func (p *parser) take(k kind) bool {
	if p.tokens[0].kind != k {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) or(depth int) (node, error) {
	left, err := p.and(depth)
	for err == nil && p.take(orToken) {
		var right node
		right, err = p.and(depth)
		left = or{left, right}
	}
	return left, err
}

func (p *parser) and(depth int) (node, error) {
	left, err := p.term(depth)
	for err == nil && p.take(andToken) {
		var right node
		right, err = p.term(depth)
		left = and{left, right}
	}
	return left, err
}

func (p *parser) term(depth int) (node, error) {
	start := p.tokens[0]
	if !p.take(openToken) {
		return p.comparison()
	}
	if depth == MaxDepth {
		return nil, &SyntaxError{Offset: start.offset, Message: fmt.Sprintf("more than %d nested parentheses", MaxDepth)}
	}
	inner, err := p.or(depth + 1)
	if err != nil {
		return nil, err
	}
	if end := p.tokens[0]; !p.take(closeToken) {
		return nil, &SyntaxError{Offset: end.offset, Message: fmt.Sprintf("expected ), found %s", end)}
	}
	return inner, nil
}

func (p *parser) comparison() (node, error) {
	left, err := p.operand()
	if err != nil {
		return nil, err
	}
	operator := p.tokens[0]
	if left.kind == patternToken {
		return nil, &SyntaxError{Offset: left.offset, Message: "a pattern stands right of =~ or !~"}
	}
	if !p.take(compareToken) {
		return left, nil
	}
	right, err := p.operand()
	if err != nil {
		return nil, err
	}
	if next := p.tokens[0]; next.kind == compareToken {
		return nil, &SyntaxError{Offset: next.offset, Message: "comparisons do not chain: join them with && or ||"}
	}
	negated := operator.text[0] == '!'
	if operator.text[1] == '=' {
		if right.kind == patternToken {
			return nil, &SyntaxError{Offset: right.offset, Message: "a pattern stands right of =~ or !~"}
		}
		return equal{left, right, negated}, nil
	}
	if right.kind != patternToken && right.kind != variableToken {
		return nil, &SyntaxError{
			Offset:  right.offset,
			Message: operator.text + " needs a /pattern/ or a variable with one on its right side",
		}
	}
	return match{left, right, negated}, nil
}

func (p *parser) operand() (operand, error) {
	t := p.tokens[0]
	switch t.kind {
	case variableToken, textToken, patternToken, nullToken:
		p.take(t.kind)
		return operand{t}, nil
	default:
	}
	return operand{}, &SyntaxError{
		Offset: t.offset, Message: fmt.Sprintf("expected a variable, a text or null, found %s", t),
	}
}

func (t token) String() string {
	switch t.kind {
	case endToken:
		return "the end"
	case variableToken:
		return "$" + t.text
	case textToken:
		return fmt.Sprintf("%q", t.text)
	default:
		return t.text
	}
}
