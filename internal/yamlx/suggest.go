package yamlx

import "strings"

// Suggest gives the candidate nearest to word when it is near enough to be a slip of the finger, else "".
func Suggest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, bestDist := "", 1+max(1, len(word)/3)
	for _, c := range candidates {
		if d := distance(normal(word), normal(c)); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// normal lets minPause, min_pause and MIN-PAUSE count as the same word.
func normal(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(s))
}

// distance is the edit distance where swapping two neighbours counts as one (optimal string alignment).
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// didYouMean is the end of a message about an unknown word: a near miss if there is one, and what is allowed.
func didYouMean(word string, allowed []string) string {
	end := "; allowed: " + strings.Join(allowed, ", ")
	if len(allowed) == 0 {
		end = ""
	}
	if s := Suggest(word, allowed); s != "" {
		return "; did you mean " + s + "?" + strings.Replace(end, ";", "", 1)
	}
	return end
}
