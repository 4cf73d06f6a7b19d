// Package condition parses and evaluates the expressions of rules:if, with the semantics that GitLab documents.
//
//	expression = and { "||" and }
//	and        = term { "&&" term }
//	term       = "(" expression ")" | operand [ operator operand ]
//	operator   = "==" | "!=" | "=~" | "!~"
//	operand    = $NAME | ${NAME} | "text" | 'text' | /pattern/flags | null
//
// A variable alone is true if it is defined and not empty. An undefined variable equals null and no text. Strings have
// no escapes. A pattern is an RE2 expression with flags from i, m, s and U; it stands right of =~ and !~ only, where a
// variable whose value has the form /pattern/flags does too. A value of another form matches nothing. Variables inside
// of values are not expanded.
//
// Parsing and evaluation take time linear in the input; the depth of parentheses, the length and the number of operands
// are bounded.
package condition
